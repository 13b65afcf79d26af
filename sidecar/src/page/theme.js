// Light, dark or as the system has it. Not a module, so that it runs before anything is drawn.
"use strict";
(() => {
  const KEY = "sluicegate-theme";
  const THEMES = ["auto", "light", "dark"];
  const read = () => {
    try {
      const kept = localStorage.getItem(KEY);
      return THEMES.includes(kept) ? kept : "auto";
    } catch {
      return "auto"; // Storage may be forbidden; the switch then lasts until the page is left.
    }
  };
  let theme = read();
  const show = () => {
    document.documentElement.dataset.theme = theme;
    const name = document.getElementById("theme-name");
    if (name) name.textContent = theme;
  };
  show();
  document.addEventListener("DOMContentLoaded", () => {
    show();
    document.getElementById("theme").addEventListener("click", () => {
      theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
      try {
        localStorage.setItem(KEY, theme);
      } catch { /* as above */ }
      show();
    });
  });
})();
