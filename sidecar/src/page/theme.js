// Light, dark or the system's theme. Not a module, so that it runs before the first paint.
"use strict";
(() => {
  const KEY = "sluicegate-theme";
  const THEMES = ["auto", "light", "dark"];
  const read = () => {
    try {
      const kept = localStorage.getItem(KEY);
      return THEMES.includes(kept) ? kept : "auto";
    } catch {
      return "auto"; // Storage may be disabled; the choice then lasts until the page is closed.
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
