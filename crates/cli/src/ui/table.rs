//! Tables that fit: columns as wide as what is in them, and where that is too much, the flexible ones are cut.

use super::style::Style;
use super::text::{cut, one_line, width};

/// The space between two columns.
const SPACE: usize = 2;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    title: &'static str,
    right: bool,
    /// The least width that it may be cut to; none for a column that is not cut before all others are.
    least: Option<usize>,
}

impl Column {
    pub(crate) const fn new(title: &'static str) -> Self {
        Self { title, right: false, least: None }
    }

    pub(crate) const fn right(mut self) -> Self {
        self.right = true;
        self
    }

    pub(crate) const fn flexible(mut self, least: usize) -> Self {
        self.least = Some(least);
        self
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// Whatever the text is, it is made harmless first.
    pub(crate) fn new(text: &str) -> Self {
        Self { text: one_line(text).into_owned(), style: Style::Plain }
    }

    pub(crate) const fn style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) const fn new(columns: Vec<Column>) -> Self {
        Self { columns, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// The whole table. No line is wider than `limit`.
    pub(crate) fn render(&self, limit: Option<usize>, colour: bool) -> String {
        let widths = self.widths(limit);
        let head: Vec<Cell> = self.columns.iter().map(|c| Cell::new(c.title).style(Style::Bold)).collect();
        let mut text = String::new();
        for row in std::iter::once(&head).chain(&self.rows) {
            self.render_row(row, &widths, limit, colour, &mut text);
        }
        text
    }

    fn widths(&self, limit: Option<usize>) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|column| width(column.title)).collect();
        for row in &self.rows {
            for (wide, cell) in widths.iter_mut().zip(row) {
                *wide = (*wide).max(width(&cell.text));
            }
        }
        let Some(limit) = limit else { return widths };
        let all: usize = widths.iter().sum::<usize>() + SPACE * widths.len().saturating_sub(1);
        let mut excess = all.saturating_sub(limit);
        // The last flexible column gives first: it is the one people can do without longest.
        for (at, column) in self.columns.iter().enumerate().rev() {
            if let Some(least) = column.least {
                let given = excess.min(widths[at].saturating_sub(least));
                widths[at] -= given;
                excess -= given;
            }
        }
        widths
    }

    fn render_row(
        &self,
        row: &[Cell],
        widths: &[usize],
        limit: Option<usize>,
        colour: bool,
        text: &mut String,
    ) {
        let mut left = limit.unwrap_or(usize::MAX);
        let mut gap = 0;
        for ((at, cell), column) in row.iter().enumerate().zip(&self.columns) {
            let Some(room) = left.checked_sub(gap).filter(|room| *room > 0) else { break };
            let wide = widths[at].min(room);
            let shown = cut(&cell.text, wide);
            let pad = wide - width(&shown);
            text.extend(std::iter::repeat_n(' ', gap + if column.right { pad } else { 0 }));
            text.push_str(&cell.style.paint(&shown, colour));
            left = room - wide;
            gap = SPACE + if column.right { 0 } else { pad };
            left += if column.right { 0 } else { pad };
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unicode_width::UnicodeWidthStr as _;

    use super::*;

    fn columns() -> Vec<Column> {
        vec![
            Column::new("ID"),
            Column::new("NAME").flexible(4),
            Column::new("PID").right(),
            Column::new("COMMAND").flexible(8),
        ]
    }

    #[test]
    fn flexible_columns_give_way() {
        let mut table = Table::new(columns());
        table.row(["sh-1", "build", "12", "cargo build --release --locked"].map(Cell::new).to_vec());
        assert_eq!(
            table.render(Some(32), false),
            "ID    NAME   PID  COMMAND\nsh-1  build   12  cargo build -…\n"
        );
        assert_eq!(table.render(Some(6), false), "ID\nsh-1\n");
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_the_terminal(
            rows in prop::collection::vec(prop::collection::vec(any::<String>(), 4), 0..6),
            limit in 1_usize..120,
        ) {
            let mut table = Table::new(columns());
            for row in &rows {
                table.row(row.iter().map(|text| Cell::new(text)).collect());
            }
            let text = table.render(Some(limit), false);
            prop_assert_eq!(text.matches('\n').count(), rows.len() + 1);
            for line in text.lines() {
                prop_assert!(width(line) <= limit && line.width() <= limit, "{line:?}");
            }
        }
    }
}
