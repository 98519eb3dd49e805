// Click a column's head to sort by it; without JavaScript the tables are as they are.
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)], [p, q] = [parseFloat(x), parseFloat(y)];
        if (isNaN(p) !== isNaN(q)) return isNaN(p) ? 1 : -1;
        return (isNaN(p) ? x.localeCompare(y) : p - q) * (up ? 1 : -1);
      });
      table.tBodies[0].append(...rows);
    };
    head.classList.add("sortable");
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}
// On paper everything is open.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
