/* bench_stat.c - order statistics for the benchmarks. After the measurement, on one rank; sorts in place, allocates nothing. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_percentile(double *samples, size_t count, double p)
{
    if (count == 0)
        return 0;
    qsort(samples, count, sizeof *samples, by_value);
    size_t at = (size_t)ceil(p * (double)count);
    return samples[at == 0 ? 0 : (at > count ? count : at) - 1];
}

double bench_mean(const double *samples, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += samples[i];
    return count == 0 ? 0 : sum / (double)count;
}
