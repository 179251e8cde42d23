// The probability of a class at every angle, as a polar plot: 0 degrees is up, angles grow counter-clockwise.

const STEP = 5;
const ANGLES = Array.from({ length: 360 / STEP }, (_, k) => k * STEP);
const AT_ONCE = 6; // pictures per step; between two steps the page reacts to the user

class Circle {
  constructor(networks, plot, caption) {
    this.networks = networks;
    this.caption = caption;
    this.plot = plot;
    const rings = [0.5, 1].map((r) => `<circle r="${90 * r}"/>`).join("");
    const words = [0, 90, 180, 270].map((angle) => {
      const [x, y] = polar(angle, 1.17);
      return `<text x="${x}" y="${y}">${angle}°</text>`;
    });
    const curves = networks.map((_, n) => `<path class="curve" data-network="${n % 4}"/>`);
    plot.innerHTML = `<g class="rings">${rings}${words.join("")}</g>${curves.join("")}<line class="now"/>`;
    this.curves = [...plot.querySelectorAll(".curve")];
    this.now = plot.querySelector(".now");
  }

  restart(pixels, side, mirrored, label) {
    Object.assign(this, { pixels, side, mirrored, label });
    this.isBlank = !pixels.some((value) => value > 0);
    this.probabilities = this.networks.map(() => []);
    this.show();
  }

  get isComplete() {
    return this.isBlank || this.probabilities.every((probabilities) => probabilities.length === ANGLES.length);
  }

  async advance() {
    const n = this.probabilities.findIndex((probabilities) => probabilities.length < ANGLES.length);
    const angles = ANGLES.slice(this.probabilities[n].length, this.probabilities[n].length + AT_ONCE);
    const pictures = angles.map((angle) => posed(this.pixels, this.side, { angle, mirrored: this.mirrored }));
    const { probabilities } = await this.networks[n].run(pictures, this.side);
    this.probabilities[n].push(...probabilities);
    this.show();
  }

  /** Return the label of the digit if it is known, else the class with the highest sum of probabilities. */
  chosenClass() {
    if (this.label !== null) return this.label;
    const all = this.probabilities.flat();
    if (!all.length) return null;
    const sums = all[0].map((_, k) => all.reduce((sum, probabilities) => sum + probabilities[k], 0));
    return sums.indexOf(Math.max(...sums));
  }

  show() {
    const chosen = this.chosenClass();
    this.curves.forEach((curve, n) => {
      const points = this.probabilities[n].map((probabilities, k) => polar(ANGLES[k], probabilities[chosen]).join(" "));
      const closed = points.length === ANGLES.length ? "Z" : "";
      curve.setAttribute("d", points.length ? `M${points.join("L")}${closed}` : "");
    });
    if (this.isBlank) {
      this.caption.textContent = "Nothing drawn: the probability at every angle appears here.";
      return;
    }
    const name = chosen === null ? "each class" : `“${this.networks[0].classes[chosen]}”`;
    this.caption.replaceChildren(`Probability of ${name} at every angle; the outer ring is 100 %.`);
    this.networks.forEach((network, n) => {
      const right = this.probabilities[n].filter((probabilities) => probabilities[chosen] === Math.max(...probabilities));
      const line = document.createElement("span");
      line.dataset.network = n % 4;
      line.textContent = `${network.title}: most probable at ${right.length} of ${this.probabilities[n].length} angles`;
      this.caption.append(line);
    });
  }

  point(angle) {
    const [x, y] = polar(angle, 1.06);
    this.now.setAttribute("x2", x);
    this.now.setAttribute("y2", y);
  }
}

function polar(angle, radius) {
  const turn = (angle * Math.PI) / 180;
  return [-90 * radius * Math.sin(turn), -90 * radius * Math.cos(turn)].map((value) => +value.toFixed(2));
}
