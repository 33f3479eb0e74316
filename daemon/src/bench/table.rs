//! Tables: names to the left, numbers to the right.

use comfy_table::{CellAlignment, Table, presets};

/// A table whose first columns are names.
pub struct Columns {
    table: Table,
    names: usize,
}

impl Columns {
    /// With this header, the first so many columns being names.
    pub fn new(header: &[&str], names: usize) -> Columns {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_header(header);
        Columns { table, names }
    }

    /// One row more.
    pub fn row(&mut self, cells: Vec<String>) {
        self.table.add_row(cells);
    }

    /// As text.
    pub fn text(mut self) -> String {
        for (index, column) in self.table.column_iter_mut().enumerate() {
            let left = index < self.names;
            column.set_cell_alignment(if left { CellAlignment::Left } else { CellAlignment::Right });
            column.set_padding((0, 2));
        }
        self.table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }
}

/// With so many decimals; `-` for nothing.
pub fn decimals(value: Option<f64>, places: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.places$}"))
}
