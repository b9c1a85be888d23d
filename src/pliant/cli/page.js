// Draw all figures of the page: plotly.js lies in it compressed, so that it needs no network.
(async () => {
  const figures = [...document.querySelectorAll("script.data")];
  if (typeof DecompressionStream === "undefined") {
    for (const data of figures) data.previousElementSibling.textContent = "Plots need a browser of 2023 or later.";
    return;
  }
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
  const source = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(source).text();
  document.head.append(script);
  const phone = matchMedia("(max-width: 640px)");
  const draw = () => Promise.all(figures.map((data) => {
    const { data: traces, layout } = JSON.parse(data.textContent);
    if (phone.matches) layout.margin = { ...layout.margin, l: 5, r: 45 };
    return Plotly.react(data.previousElementSibling, traces, layout, { displayModeBar: false, responsive: true });
  }));
  phone.addEventListener("change", draw);
  await draw();
  document.body.dataset.drawn = "yes";
})();
