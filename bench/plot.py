"""plot.py - an SVG of the allreduce rows that table.py makes: peer / ours by size, both axes logarithmic, one line for each number
of ranks, mode, place and memory. Standard library only; peers.py uses it.

  plot.py RESULTS.csv     the same from a file of bench/results/, to stdout

Colour: ranks and mode. Full lines: private, broken: arena. Filled dots: out of place, open: in place. Below the line of 1 the peer is
faster.
"""
import collections
import math
import sys

import table

WIDTH, HEIGHT = 1020, 560
LEFT, RIGHT, TOP, BOTTOM = 60, 290, 40, 50
COLOURS = ["#1f6fb4", "#d1495b", "#2e8b57", "#8a5cb8", "#c77f1a", "#4a4a4a"]


def lines_of(rows):
    """(ranks, mode, place, memory) -> points (bytes, ratio), in the order of the rows."""
    found = collections.defaultdict(list)
    for r in rows:
        for prefix, memory in table.MEMORIES:
            if r["what"] != "allreduce" or r["against"] != "all" or r[prefix + "ratio"] == "":
                continue
            found[int(r["ranks"]), r["mode"], r["place"], memory].append((int(r["bytes"]), float(r[prefix + "ratio"])))
    return found


def scale(least, most, begin, end):
    """A function from values to places between begin and end, logarithmic."""
    width = math.log(most / least) or 1
    return lambda value: begin + (end - begin) * math.log(value / least) / width


def text(x, y, words, anchor="middle"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def axes(sizes, low, high, x, y):
    for size in sizes:
        yield f'<line x1="{x(size):.1f}" y1="{TOP}" x2="{x(size):.1f}" y2="{HEIGHT - BOTTOM}" stroke="#eee"/>'
        yield text(x(size), HEIGHT - BOTTOM + 18, table.human(size))
    for ratio in (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 32):
        if low <= ratio <= high:
            colour = "#333" if ratio == 1 else "#ddd"
            yield f'<line x1="{LEFT}" y1="{y(ratio):.1f}" x2="{WIDTH - RIGHT}" y2="{y(ratio):.1f}" stroke="{colour}"/>'
            yield text(LEFT - 8, y(ratio) + 4, f"{ratio:g}", "end")


def one_line(points, colour, place, memory):
    """points: places on the page."""
    dashes = ' stroke-dasharray="6 4"' if memory == "arena" else ""
    where = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    yield f'<polyline points="{where}" fill="none" stroke="{colour}" stroke-width="1.6"{dashes}/>'
    for a, b in points:
        yield f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" stroke="{colour}" fill="{colour if place == "oop" else "#fff"}"/>'


def svg(rows):
    found = lines_of(rows)
    if not found:
        nothing = text(WIDTH / 2, 30, "nothing was measured")
        return f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="60">{nothing}</svg>\n'
    sizes = sorted({size for points in found.values() for size, _ in points})
    ratios = [ratio for points in found.values() for _, ratio in points]
    low, high = min(0.9, *ratios) / 1.05, max(1.2, *ratios) * 1.05
    x, y = scale(sizes[0], sizes[-1], LEFT + 10, WIDTH - RIGHT - 10), scale(low, high, HEIGHT - BOTTOM, TOP)
    groups = list(dict.fromkeys((key[0], key[1]) for key in found))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
           text((LEFT + WIDTH - RIGHT) / 2, 22, "allreduce, float32: time of the strongest peer ÷ ours (above 1: ours is faster)"),
           *axes(sizes, low, high, x, y)]
    for i, (key, points) in enumerate(found.items()):
        ranks, mode, place, memory = key
        colour = COLOURS[groups.index((ranks, mode)) % len(COLOURS)]
        out += one_line([(x(size), y(ratio)) for size, ratio in points], colour, place, memory)
        height = TOP + 10 + 18 * i
        out += one_line([(WIDTH - RIGHT + 14, height), (WIDTH - RIGHT + 44, height)], colour, place, memory)
        words = f"{ranks} ranks{'' if mode == '-' else ' ' + mode}, {'out of place' if place == 'oop' else 'in place'}, {memory}"
        out.append(text(WIDTH - RIGHT + 52, height + 4, words, "start"))
    return "\n".join([*out, "</svg>"]) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(svg(table.read_results(sys.argv[1])), end="")
