// Draws the page's figures one after another, and lets runs, parts and updates be chosen.
"use strict";

const root = document.documentElement;
const state = { off: new Set(), log: false, syncing: false };
const config = {
    responsive: true, displaylogo: false, plotlyServerURL: "", scrollZoom: false,
    modeBarButtons: [["toImage", "resetScale2d"]],
};

window.addEventListener("error", event => fail(event.message));
document.addEventListener("securitypolicyviolation", event => fail(`refused: ${event.violatedDirective} ${event.blockedURI}`));
window.addEventListener("unhandledrejection", event => fail(event.reason));

function fail(what) {
    root.dataset.failed = String(what);
    const box = document.createElement("p");
    box.className = "failure";
    box.textContent = "This page could not draw everything: " + what;
    document.body.prepend(box);
}

function bytesOf(text) {
    return Uint8Array.from(atob(text), character => character.charCodeAt(0));
}

const TYPES = { f4: Float32Array, f8: Float64Array, i4: Int32Array, i2: Int16Array, i1: Int8Array, u1: Uint8Array, u2: Uint16Array };

// An array of plotly's JSON: plain, or bytes in base64; rows where it has two dimensions.
function arrayOf(coded) {
    if (Array.isArray(coded)) return coded;
    const flat = Array.from(new TYPES[coded.dtype](bytesOf(coded.bdata).buffer));
    if (!coded.shape) return flat;
    const width = Number(coded.shape.split(",")[1]);
    const rows = [];
    for (let start = 0; start < flat.length; start += width) rows.push(flat.slice(start, start + width));
    return rows;
}

const short = value => Number.isFinite(value) ? Number(value.toPrecision(4)).toString() : "not finite";

const read = plot => JSON.parse(plot.nextElementSibling.textContent);

// Updates and values of a heat map, drawn or not.
function gridOf(plot, figure = null) {
    if (!plot.grid) {
        const trace = (figure || read(plot)).data[0];
        plot.grid = { updates: arrayOf(trace.x), values: arrayOf(trace.z) };
    }
    return plot.grid;
}

// The wire has nan where nothing was measured and infinity where it was not finite.
function prepareMap(plot, figure) {
    const { meta } = figure.layout, trace = figure.data[0];
    const { values } = gridOf(plot, figure);
    const place = value => {
        if (!Number.isFinite(value)) return null;
        return meta.log ? Math.log10(Math.max(value, meta.low)) : value;
    };
    const ends = [meta.low, meta.high].map(value => meta.log ? Math.log10(value) : value);
    const unit = meta.unit === "none" ? "" : " " + meta.unit;
    Object.assign(trace, {
        x: plot.grid.updates, y: arrayOf(trace.y), z: values.map(row => row.map(place)),
        zmin: ends[0], zmax: ends[1],
        customdata: values.map(row => row.map(value => short(value) + unit)),
        hovertemplate: "update %{x}, layer %{y}: %{customdata}<extra></extra>",
    });
    if (values.some(row => row.includes(Infinity))) {
        figure.data.push({
            type: "heatmap", x: trace.x, y: trace.y, showscale: false, hoverongaps: false,
            z: values.map(row => row.map(value => value === Infinity ? 1 : null)),
            colorscale: [[0, meta.broken], [1, meta.broken]], meta: trace.meta,
            hovertemplate: "update %{x}, layer %{y}: not finite<extra></extra>",
        });
    }
}

function nearest(updates, update) {
    let best = 0;
    updates.forEach((each, index) => {
        if (Math.abs(each - update) < Math.abs(updates[best] - update)) best = index;
    });
    return best;
}

const plain = name => name.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const finite = (values, index) => values.some(row => Number.isFinite(row[index]));

// Values by layer at one update, solid, and at the first one, dotted: from the heat maps of a part.
function profileTraces(plot) {
    const part = plot.closest(".part"), slider = part.querySelector("input[type=range]");
    const traces = [];
    for (const map of part.querySelectorAll(`.map[data-side="${plot.dataset.side}"]`)) {
        const { updates, values } = gridOf(map);
        const now = nearest(updates, Number(slider.value));
        for (const index of now > 0 ? [0, now] : [now]) {
            const first = index !== now;
            traces.push({
                type: "scatter", mode: values.length > 40 ? "lines" : "lines+markers",
                name: `${plain(map.dataset.name)}, update ${updates[index].toLocaleString("en")}${finite(values, index) ? "" : ": not finite"}`,
                x: values.map((_, layer) => layer + 1),
                y: values.map(row => Number.isFinite(row[index]) ? row[index] : null),
                line: { color: map.dataset.colour, width: first ? 1.2 : 2, dash: first ? "dot" : "solid" },
                marker: { size: first ? 3 : 5, color: map.dataset.colour },
                meta: { run: Number(map.dataset.run) }, hovertemplate: "%{y:.4g}",
                visible: !state.off.has(Number(map.dataset.run)),
            });
        }
    }
    return traces;
}

// Room for a legend below the figure: plotly itself would take it from the lines.
function legendSpace(plot, traces) {
    const names = traces.filter(trace => trace.name && trace.showlegend !== false).map(trace => trace.name);
    if (names.length < 2) return { showlegend: false, "margin.b": 44, height: 310 };
    const width = 46 + 6.3 * Math.max(...names.map(name => name.replace(/&\w+;/g, "x").length));
    const rows = Math.ceil(names.length / Math.max(1, Math.floor((plot.clientWidth - 20) / (width + 8))));
    return {
        showlegend: true, height: 316 + 20 * rows, "margin.b": 50 + 20 * rows,
        legend: { orientation: "h", x: 0, xref: "container", y: 0, yref: "container", yanchor: "bottom",
            entrywidth: width - 40, entrywidthmode: "pixels", font: { size: 11.5 } },
    };
}

function giveSpace(plot, figure) {
    const { "margin.b": below, ...rest } = legendSpace(plot, figure.data);
    plot.style.height = `${rest.height}px`;
    Object.assign(figure.layout, rest);
    figure.layout.margin.b = below;
}

function figureOf(plot) {
    const figure = read(plot);
    const { meta } = figure.layout;
    if (meta.map) prepareMap(plot, figure);
    if (meta.profile) figure.data = profileTraces(plot);
    const marks = [...figure.layout.shapes || [], ...figure.layout.annotations || []];
    if (meta.updates && state.log) {
        figure.layout.xaxis.type = "log";
        for (const note of figure.layout.annotations || []) note.x = Math.log10(note.x);
    }
    for (const trace of figure.data) if (state.off.has(trace.meta.run)) trace.visible = false;
    for (const mark of marks) if (state.off.has(Number(mark.name))) mark.visible = false;
    if (!meta.map) giveSpace(plot, figure);
    return figure;
}

function draw(plot) {
    if (plot.figure) return;
    const figure = plot.figure = figureOf(plot);
    Plotly.newPlot(plot, figure.data, figure.layout, config);
    plot.dataset.drawn = figure.data.length;
    if (figure.layout.meta.updates) plot.on("plotly_relayout", change => follow(plot, change));
}

// A zoom into some updates is made in all figures of the same quantity.
function follow(plot, change) {
    if (state.syncing) return;
    const range = change["xaxis.range[0]"] !== undefined
        ? { "xaxis.range": [change["xaxis.range[0]"], change["xaxis.range[1]"]] }
        : change["xaxis.autorange"] ? { "xaxis.autorange": true } : null;
    if (!range) return;
    state.syncing = true;
    const others = [...plot.closest(".quantity").querySelectorAll(".plot")]
        .filter(other => other !== plot && other.figure && other.figure.layout.meta.updates);
    Promise.all(others.map(other => Plotly.relayout(other, range))).finally(() => { state.syncing = false; });
}

function pending() {
    return [...document.querySelectorAll(".plot")]
        .filter(plot => !plot.figure && !plot.closest("[hidden], .hidden"));
}

function drawAll() {
    const next = pending()[0];
    if (!next) {
        root.dataset.state = "drawn";
        return;
    }
    root.dataset.state = "drawing";
    draw(next);
    setTimeout(drawAll, 0);
}

function showPart(button) {
    const section = button.closest(".quantity");
    for (const other of button.parentNode.children) other.setAttribute("aria-pressed", other === button);
    for (const part of section.querySelectorAll(".part")) part.hidden = part.dataset.part !== button.dataset.part;
    for (const plot of section.querySelectorAll(".part:not([hidden]) .plot")) if (plot.figure) Plotly.Plots.resize(plot);
    drawAll();
}

function moveTo(slider) {
    const part = slider.closest(".part");
    part.querySelector("output").textContent = Number(slider.value).toLocaleString("en");
    for (const plot of part.querySelectorAll(".profile")) {
        if (plot.figure) Plotly.react(plot, profileTraces(plot), plot.layout, config);
    }
}

function toggleRun(chip) {
    const run = Number(chip.dataset.run), on = state.off.has(run);
    state.off[on ? "delete" : "add"](run);
    chip.setAttribute("aria-pressed", on);
    for (const plot of document.querySelectorAll(".plot")) {
        if (plot.dataset.run !== undefined && Number(plot.dataset.run) === run) {
            plot.parentNode.classList.toggle("hidden", !on);
            if (on && plot.figure) Plotly.Plots.resize(plot);
        } else if (plot.figure) {
            const places = plot.data.flatMap((trace, index) => trace.meta.run === run ? [index] : []);
            const marks = {};
            for (const kind of ["shapes", "annotations"]) {
                (plot.layout[kind] || []).forEach((mark, index) => {
                    if (Number(mark.name) === run) marks[`${kind}[${index}].visible`] = on;
                });
            }
            if (places.length) Plotly.update(plot, { visible: on }, marks, places);
        }
    }
    drawAll();
}

function setAxis(box) {
    state.log = box.checked;
    const change = { "xaxis.type": state.log ? "log" : "linear", "xaxis.autorange": true };
    state.syncing = true;
    const drawn = [...document.querySelectorAll(".plot")].filter(plot => plot.figure && plot.figure.layout.meta.updates);
    Promise.all(drawn.map(plot => Plotly.relayout(plot, change))).finally(() => { state.syncing = false; });
}

let waiting = 0;

function resized() {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
        for (const plot of document.querySelectorAll(".plot:not(.map)")) {
            if (plot.figure && plot.clientWidth) {
                const space = legendSpace(plot, plot.data);
                plot.style.height = `${space.height}px`;
                Plotly.relayout(plot, space);
            }
        }
    }, 200);
}

function start() {
    window.addEventListener("resize", resized);
    document.querySelectorAll(".tabs button").forEach(button => button.addEventListener("click", () => showPart(button)));
    document.querySelectorAll(".chip").forEach(chip => chip.addEventListener("click", () => toggleRun(chip)));
    document.querySelectorAll("input[type=range]").forEach(slider => slider.addEventListener("input", () => moveTo(slider)));
    const box = document.getElementById("log-updates");
    if (box) box.addEventListener("change", () => setAxis(box));
    drawAll();
}

start();
