// Maps (1, channels, poses, height, width) of a network: moved back to the first pose, and drawn as pictures.

/** Return the element of the network's group nearest to a pose of the picture; a mirror counts only if it has one. */
function nearestElement(group, { angle, mirrored }) {
  const [cos, sin] = [Math.cos((angle * Math.PI) / 180), Math.sin((angle * Math.PI) / 180)];
  const across = mirrored && group.mirrors ? -1 : 1; // mirror first: the first column changes its sign
  const matrix = [across * cos, -sin, across * sin, cos];
  const likeness = group.planar.map((element) => element.reduce((sum, value, i) => sum + value * matrix[i], 0));
  return likeness.indexOf(Math.max(...likeness));
}

/**
 * The map x with g.x = y, where g moved the picture: x[h] = g^-1 . y[g h].
 * Arrays can follow quarter turns only; `rest` is the angle by which the picture of x is still to be turned.
 */
function broughtBack(map, group, pose) {
  const [, channels, poses, side] = map.dims;
  const g = nearestElement(group, pose);
  const quarters = Math.round(pose.angle / 90);
  const area = side * side;
  const data = new Float32Array(map.data.length);
  for (let c = 0; c < channels; c++) {
    for (let h = 0; h < poses; h++) {
      const from = (c * poses + group.product[g][h]) * area;
      const upright = quarterTurned(map.data.subarray(from, from + area), side, -quarters);
      data.set(pose.mirrored ? mirroredColumns(upright, side) : upright, (c * poses + h) * area);
    }
  }
  const left = pose.angle - 90 * quarters;
  return { dims: map.dims, data, rest: pose.mirrored ? left : -left };
}

/** Return the largest difference between maps and those of the unmoved picture, relative to their largest value. */
function largestDifference(maps, unmoved) {
  let worst = 0;
  for (const name of Object.keys(maps)) {
    let [difference, size] = [0, 1e-12];
    maps[name].data.forEach((value, i) => {
      difference = Math.max(difference, Math.abs(value - unmoved[name].data[i]));
      size = Math.max(size, Math.abs(unmoved[name].data[i]));
    });
    worst = Math.max(worst, difference / size);
  }
  return worst;
}

/** Return one plane per pose: a channel of the layer, or the mean of all. Slices of a channel are averaged. */
function planes(map, layerChannels, channel) {
  const [, channels, poses, side] = map.dims;
  const perChannel = channels / layerChannels;
  const [first, last] = channel === null ? [0, channels] : [channel * perChannel, (channel + 1) * perChannel];
  return Array.from({ length: poses }, (_, g) => {
    const plane = new Float32Array(side * side);
    for (let c = first; c < last; c++) {
      const from = (c * poses + g) * side * side;
      for (let i = 0; i < plane.length; i++) plane[i] += map.data[from + i] / (last - first);
    }
    return plane;
  });
}

/** A table of small pictures: a row per layer, a column per pose. */
class MapTable {
  constructor(network, kind, layers) {
    this.kind = kind;
    this.layers = layers;
    this.element = document.createElement("table");
    const words = network.group.elements;
    const caption = kind === "mask" ? "Masks" : "Responses";
    this.element.innerHTML = `<caption>${caption}</caption>
      <thead><tr><th scope="col">layer</th></tr></thead><tbody></tbody>`;
    const heading = this.element.tHead.rows[0];
    network.group.planar.forEach((matrix, g) => heading.append(poseHeading(matrix, words[g])));
    this.rows = layers.map((layer) => {
      const row = this.element.tBodies[0].insertRow();
      row.innerHTML = `<th scope="row">${layer.number}<small></small></th>`;
      const canvases = words.map((word) => {
        const canvas = document.createElement("canvas");
        canvas.setAttribute("role", "img");
        canvas.setAttribute("aria-label", `${kind} of layer ${layer.number}, ${word}`);
        row.insertCell().append(canvas);
        return canvas;
      });
      return { range: row.querySelector("small"), canvases };
    });
  }

  show(maps, channel) {
    this.layers.forEach((layer, k) => {
      const map = maps[layer[this.kind]];
      const { range, canvases } = this.rows[k];
      const shown = planes(map, layer.channels, channel !== null && channel >= layer.channels ? null : channel);
      const [low, high] = shown.reduce(
        ([a, b], plane) => [Math.min(a, ...plane), Math.max(b, ...plane)],
        [Infinity, -Infinity],
      );
      const colour = this.kind === "mask" ? sequential(low, high) : diverging(Math.max(-low, high));
      range.textContent = this.kind === "mask" ? `${short(low)}–${short(high)}` : `±${short(Math.max(-low, high))}`;
      canvases.forEach((canvas, g) => {
        paint(canvas, shown[g], map.dims[3], colour);
        canvas.style.transform = map.rest ? `rotate(${-map.rest}deg)` : "";
      });
    });
  }
}

/** Return a flag in the pose of a column, which shows mirrored poses too. */
function poseHeading([a, b, c, d], word) {
  const heading = document.createElement("th");
  heading.scope = "col";
  heading.title = word;
  heading.innerHTML =
    `<svg viewBox="-10 -10 20 20" role="img" aria-label="${word}">` +
    `<path transform="matrix(${a} ${-c} ${-b} ${d} 0 0)" d="M0 8V-8L6 -4L0 0"/></svg>`;
  return heading;
}

const short = (value) => (value >= 10 ? value.toFixed(0) : String(Number(value.toFixed(value < 1 ? 2 : 1))));

function paint(canvas, values, side, colour) {
  if (canvas.width !== side) canvas.width = canvas.height = side;
  const context = canvas.getContext("2d");
  const image = context.createImageData(side, side);
  values.forEach((value, i) => image.data.set([...colour(value), 255], 4 * i));
  context.putImageData(image, 0, 0);
}

// Both scales are ordered for every kind of colour blindness: lightness rises along the first, and the second goes
// from blue through the background to orange.

const DARK_TO_LIGHT = [
  [0, 34, 78],
  [67, 78, 108],
  [125, 124, 120],
  [188, 174, 108],
  [254, 232, 56],
];

function mixed(stops, t) {
  const position = Math.min(1, Math.max(0, t)) * (stops.length - 1);
  const k = Math.min(stops.length - 2, Math.floor(position));
  return stops[k].map((value, i) => value + (position - k) * (stops[k + 1][i] - value));
}

const sequential = (low, high) => (value) => mixed(DARK_TO_LIGHT, high - low < 1e-6 ? 1 : (value - low) / (high - low));

function diverging(limit) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const stops = dark
    ? [
        [120, 190, 255],
        [40, 105, 175],
        [24, 27, 33],
        [190, 95, 20],
        [255, 185, 105],
      ]
    : [
        [8, 64, 129],
        [85, 150, 205],
        [247, 247, 247],
        [235, 140, 60],
        [150, 60, 5],
      ];
  return (value) => mixed(stops, 0.5 + value / (2 * limit || 1));
}
