// Pictures: side x side numbers from 0 to 255, row by row. Angles in degrees, counter-clockwise.

const mirroredColumns = (values, side) => values.map((_, i) => values[i - (i % side) + side - 1 - (i % side)]);

/** Permute the pixels as torch.rot90 does. */
function quarterTurned(values, side, turns) {
  let turned = values;
  for (let k = ((turns % 4) + 4) % 4; k > 0; k--) {
    const before = turned;
    turned = before.map((_, i) => before[(i % side) * side + side - 1 - Math.floor(i / side)]);
  }
  return turned;
}

/** Mirror first, then turn. Quarter turns permute pixels; the remaining angle, at most 45 degrees, is interpolated. */
function posed(pixels, side, { angle, mirrored }) {
  const quarters = Math.round(angle / 90);
  const start = mirrored ? mirroredColumns(pixels, side) : pixels;
  return quarterTurned(interpolated(start, side, angle - 90 * quarters), side, quarters);
}

function interpolated(pixels, side, angle) {
  if (angle === 0) return pixels;
  const [cos, sin] = [Math.cos((angle * Math.PI) / 180), Math.sin((angle * Math.PI) / 180)];
  const middle = (side - 1) / 2;
  return pixels.map((_, i) => {
    const [x, y] = [(i % side) - middle, middle - Math.floor(i / side)];
    const value = bicubic(pixels, side, middle - (cos * y - sin * x), middle + cos * x + sin * y);
    return Math.min(255, Math.max(0, value));
  });
}

function bicubic(pixels, side, row, column) {
  const [top, left] = [Math.floor(row), Math.floor(column)];
  let sum = 0;
  for (let r = top - 1; r <= top + 2; r++) {
    if (r < 0 || r >= side) continue;
    for (let c = left - 1; c <= left + 2; c++) {
      if (c < 0 || c >= side) continue;
      sum += keys(row - r) * keys(column - c) * pixels[r * side + c];
    }
  }
  return sum;
}

/** Keys' cubic kernel with PyTorch's parameter. */
function keys(distance) {
  const [a, d] = [-0.75, Math.abs(distance)];
  if (d >= 2) return 0;
  return d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1 : ((d - 5) * d + 8) * d * a - 4 * a;
}

// A drawing is a list of strokes, a stroke a list of points [x, y] from 0 to side, in the unturned picture.

function drawn(strokes, side) {
  const pixels = new Float64Array(side * side);
  const reach = (1.6 * side) / 28;
  for (const stroke of strokes) {
    stroke.forEach((end, k) => {
      const start = stroke[Math.max(0, k - 1)];
      const near = (axis, sign) => (sign < 0 ? Math.min : Math.max)(start[axis], end[axis]) + sign * reach;
      const [left, right] = [Math.max(0, Math.floor(near(0, -1))), Math.min(side, Math.ceil(near(0, 1)))];
      const [top, bottom] = [Math.max(0, Math.floor(near(1, -1))), Math.min(side, Math.ceil(near(1, 1)))];
      for (let r = top; r < bottom; r++) {
        for (let c = left; c < right; c++) {
          const ink = 255 * Math.min(1, Math.max(0, reach - toSegment([c + 0.5, r + 0.5], start, end)));
          pixels[r * side + c] = Math.max(pixels[r * side + c], ink);
        }
      }
    });
  }
  return pixels;
}

function toSegment([x, y], [x0, y0], [x1, y1]) {
  const length = (x1 - x0) ** 2 + (y1 - y0) ** 2;
  const along = length && Math.min(1, Math.max(0, ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length));
  return Math.hypot(x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0));
}

/** Fit strokes as the digits of MNIST were: 20 of 28 pixels large, centre of mass in the middle. */
function centred(strokes, side) {
  const points = strokes.flat();
  const range = (axis) => [Math.min(...points.map((p) => p[axis])), Math.max(...points.map((p) => p[axis]))];
  const [[left, right], [top, bottom]] = [range(0), range(1)];
  const scale = (17.5 * side) / 28 / Math.max(right - left, bottom - top, side / 28);
  const moved = (list, k, from, to) =>
    list.map((s) => s.map((p) => p.map((v, axis) => (v - from[axis]) * k + to[axis])));
  const middle = [side / 2, side / 2];
  const fitted = moved(strokes, scale, [(left + right) / 2, (top + bottom) / 2], middle);
  return moved(fitted, 1, centreOfMass(drawn(fitted, side), side), middle);
}

function centreOfMass(pixels, side) {
  let [mass, x, y] = [0, 0, 0];
  pixels.forEach((value, i) => {
    mass += value;
    x += value * ((i % side) + 0.5);
    y += value * (Math.floor(i / side) + 0.5);
  });
  return [x / mass, y / mass];
}

/** Return where a point of the posed picture is in the unturned one. */
function unposedPoint([x, y], side, { angle, mirrored }) {
  const [cos, sin] = [Math.cos((angle * Math.PI) / 180), Math.sin((angle * Math.PI) / 180)];
  const [right, up] = [x - side / 2, side / 2 - y];
  const [sourceRight, sourceUp] = [cos * right + sin * up, cos * up - sin * right];
  return [side / 2 + (mirrored ? -sourceRight : sourceRight), side / 2 - sourceUp];
}
