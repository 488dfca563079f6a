"use strict";
document.documentElement.classList.add("scripted");

function numbers(text, scale) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return Array.from(new Uint16Array(bytes.buffer), (n) => n / scale);
}

function quoted(token) {
  return `\u201c\u2068${token}\u2069\u201d`;
}

function picture(values, rows, columns, top) {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  values.forEach((value, index) => {
    const grey = Math.min(255, Math.round((255 * value) / top));
    image.data.set([grey, grey, grey, 255], 4 * index);
  });
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

function setUp(example) {
  const data = JSON.parse(example.querySelector('script[type="application/json"]').textContent);
  const rows = data.queries.length, columns = data.keys.length;
  const svgs = [...example.querySelectorAll("svg.map")];
  const tokens = [...example.querySelectorAll(".tok")];
  const readout = example.querySelector(".readout");
  const same = rows === columns && data.queries.every((token, index) => token === data.keys[index]);
  let current, cell = [0, 0], chosen = null;

  function shade() {
    const weights = data.keys.map((_, key) => {
      if (chosen !== null) return current.mean[chosen * columns + key];
      let sum = 0;
      for (let query = 0; query < rows; query += 1) sum += current.mean[query * columns + key];
      return sum / rows;
    });
    const most = Math.max(...weights) || 1;
    tokens.forEach((token, key) => {
      token.style.setProperty("--w", (weights[key] / most).toFixed(3));
      if (same) token.setAttribute("aria-pressed", String(key === chosen));
    });
  }

  function show(map) {
    if (!map.mean) data.kinds.forEach(({ name, scale }) => { map[name] = numbers(map[name + "16"], scale); });
    current = map;
    data.kinds.forEach(({ name }, index) => {
      const href = picture(map[name], rows, columns, map[name + "_top"] || 1);
      svgs[index].querySelector("image").setAttribute("href", href);
      svgs[index].setAttribute("aria-label", map[name + "_title"]);
      example.querySelector(`.ramp.${name} .top`).textContent = map[name + "_words"];
    });
    example.querySelector(".showing").textContent = map.showing;
    readout.textContent = map.strongest;
    shade();
  }

  function point(query, key) {
    cell = [Math.max(0, Math.min(rows - 1, query)), Math.max(0, Math.min(columns - 1, key))];
    const index = cell[0] * columns + cell[1];
    svgs.forEach((svg) => {
      const gutter = Number(svg.dataset.gutter), size = Number(svg.dataset.cell);
      let cursor = svg.querySelector(".cursor");
      if (!cursor) {
        cursor = document.createElementNS(svg.namespaceURI, "rect");
        cursor.setAttribute("class", "cursor");
        svg.append(cursor);
      }
      const place = { x: gutter + size * cell[1], y: gutter + size * cell[0], width: size, height: size };
      Object.entries(place).forEach(([name, value]) => cursor.setAttribute(name, value));
      svg.querySelectorAll(".token.on").forEach((token) => token.classList.remove("on"));
      [[".queries", 0], [".keys", 1]].forEach(([group, axis]) => {
        const label = svg.querySelector(`${group} [data-index="${cell[axis]}"]`);
        if (label) label.classList.add("on");
      });
    });
    const said = data.kinds.map((kind) => `${kind.said} ${current[kind.name][index].toFixed(kind.digits)}`);
    readout.textContent = `${quoted(data.queries[cell[0]])} attends to ${quoted(data.keys[cell[1]])}: ${said.join(", ")}`;
  }

  svgs.forEach((svg) => {
    svg.setAttribute("tabindex", "0");
    const follow = (event) => {
      const box = svg.querySelector("image").getBoundingClientRect();
      const key = Math.floor(((event.clientX - box.left) / box.width) * columns);
      const query = Math.floor(((event.clientY - box.top) / box.height) * rows);
      if (key >= 0 && key < columns && query >= 0 && query < rows) point(query, key);
    };
    svg.addEventListener("pointermove", follow);
    svg.addEventListener("pointerdown", follow);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      point(cell[0] + step[0], cell[1] + step[1]);
    });
  });

  if (same) {
    tokens.forEach((token, index) => {
      const choose = () => {
        chosen = chosen === index ? null : index;
        shade();
        readout.textContent = chosen === null ? current.strongest :
          `The text shows where ${quoted(data.keys[index])} looks.`;
      };
      token.setAttribute("role", "button");
      token.setAttribute("tabindex", "0");
      token.addEventListener("click", choose);
      token.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        choose();
      });
    });
  }

  const inputs = [...example.querySelectorAll("[data-choice]")];
  inputs.forEach((input) => input.addEventListener("change", () => {
    const name = input.dataset.choice;
    const other = inputs.find((item) => item.checked && item.dataset.choice !== name);
    const possible = data.maps.filter((map) => map[name] === input.value);
    const map = possible.find((item) => !other || item[other.dataset.choice] === other.value) || possible[0];
    inputs.forEach((item) => { item.checked = map[item.dataset.choice] === item.value; });
    show(map);
  }));
  show(data.maps[0]);
}

document.querySelectorAll("[data-example]").forEach(setUp);
