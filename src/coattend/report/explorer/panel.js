// One network: its answer, its maps, and how exactly they follow the picture.

class Panel {
  constructor(network, n) {
    this.network = network;
    this.element = document.createElement("article");
    this.element.dataset.network = n % 4;
    this.element.innerHTML = `
      <header><h2></h2><p class="about"></p></header>
      <div class="prediction">
        <p class="answer" aria-live="polite"><strong></strong><span></span></p>
        <ol class="bars"></ol>
      </div>
      <div class="maps"></div>
      <p class="difference"></p>`;
    this.find("h2").textContent = network.title;
    this.find(".about").textContent = network.about;
    this.bars = network.classes.map((name) => {
      const bar = document.createElement("li");
      bar.innerHTML = `<i></i><span class="class"></span>`;
      bar.querySelector(".class").textContent = name;
      this.find(".bars").append(bar);
      return bar;
    });
    const attentive = network.layers.filter((layer) => layer.mask);
    this.tables = [new MapTable(network, "response", network.layers)];
    if (attentive.length) this.tables.push(new MapTable(network, "mask", attentive));
    this.find(".maps").append(...this.tables.map((table) => table.element));
    this.find(".maps").classList.toggle("many-poses", network.group.planar.length > 4);
    if (!attentive.length) {
      const note = document.createElement("p");
      note.className = "no-masks";
      note.textContent = "No attention, so no masks: every response counts in full, in every pose.";
      this.find(".maps").append(note);
    }
    this.names = network.layers.flatMap((layer) => [layer.response, layer.mask].filter(Boolean));
  }

  find(selector) {
    return this.element.querySelector(selector);
  }

  async run(pictureIsNew) {
    const { network, names } = this;
    const pose = { ...state.pose };
    if (pictureIsNew) this.unmoved = (await network.run([state.pixels], side, names)).maps;
    this.outputs = await network.run([posed(state.pixels, side, pose)], side, names);
    const back = names.map((name) => [name, broughtBack(this.outputs.maps[name], network.group, pose)]);
    this.back = Object.fromEntries(back);
  }

  show() {
    const probabilities = this.outputs.probabilities[0];
    const best = probabilities.indexOf(Math.max(...probabilities));
    const blank = isBlank();
    this.element.classList.toggle("blank", blank);
    setText(this.find(".answer strong"), blank ? "–" : this.network.classes[best]);
    setText(this.find(".answer span"), blank ? "nothing drawn" : percent(probabilities[best]));
    this.bars.forEach((bar, k) => {
      bar.classList.toggle("best", k === best);
      bar.dataset.probability = probabilities[k];
      bar.style.setProperty("--part", probabilities[k]);
      bar.title = `${this.network.classes[k]}: ${percent(probabilities[k])}`;
    });
    this.showMaps();
    setText(this.find(".difference"), blank ? "" : this.difference());
  }

  showMaps() {
    const channel = find("channel").value === "" ? null : Number(find("channel").value);
    for (const table of this.tables) table.show(find("back").checked ? this.back : this.outputs.maps, channel);
  }

  /** Return a sentence on how the maps, moved back, agree with those of the unmoved picture. */
  difference() {
    const { angle, mirrored } = state.pose;
    if (angle % 360 === 0 && !mirrored) return "Turn the picture by a quarter: all maps turn and change their columns.";
    if (angle % 90) return "Between quarter turns pixels are interpolated; quarter turns can be compared exactly.";
    const difference = largestDifference(this.back, this.unmoved);
    if (difference < 1e-4) {
      const digits = difference ? `to ${difference.toExponential(0)}` : "in every digit";
      return `Brought back, all maps agree with those of the unmoved picture ${digits}.`;
    }
    const why = mirrored && !this.network.group.mirrors ? ": its group has no mirrors" : "";
    const amount = `${(100 * difference).toFixed(difference < 0.1 ? 2 : 0)} %`;
    return `Brought back, maps differ from those of the unmoved picture by up to ${amount}${why}.`;
  }
}

function percent(probability) {
  if (probability > 0.999) return "> 99.9 %";
  return probability < 0.001 ? "< 0.1 %" : `${(100 * probability).toFixed(1)} %`;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text; // screen readers speak what changes
}
