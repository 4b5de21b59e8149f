// Runs before the first paint, so that a page is not shown in the wrong colours for a moment.
(function () {
  "use strict";
  var root = document.documentElement;
  root.classList.add("script");
  try {
    var chosen = window.localStorage.getItem("assay-scheme");
    if (chosen === "dark" || chosen === "light") root.dataset.scheme = chosen;
  } catch (error) {
    // Storage can be forbidden; the scheme of the system is then used.
  }
})();
