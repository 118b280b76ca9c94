//! Draws a [`View`] into the available area.

use ratatui::Frame;
use ratatui::layout::{Alignment, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, RenderDirection, Sparkline, SparklineBar, Wrap};

use super::history::Sample;
use super::status::{Engine, Model};
use super::view::{EXPLANATIONS, Fact, View, facts, number, title};

/// The columns of a number with its name.
const FACT_COLUMNS: u16 = 36;
/// The columns of a number's name.
const LABEL_COLUMNS: usize = 11;
/// The fewest columns of a cell in which names are padded, so that the numbers are aligned.
const NARROW_COLUMNS: usize = 30;
/// The fewest and the most lines of a diagram, including its title.
const DIAGRAM_LINES: u16 = 3;
const DIAGRAM_LINES_MAX: u16 = 12;
/// The fewest columns of each of two adjacent diagrams.
const DIAGRAM_COLUMNS: u16 = 50;

/// The styles of the picture.
#[derive(Debug, Clone, Copy)]
pub(super) struct Palette {
    faint: Style,
    strong: Style,
    trouble: Style,
    used: Style,
    kept: Style,
}

impl Palette {
    /// Creates styles with colours, or with the attributes that every terminal has.
    pub(super) fn new(has_colours: bool) -> Self {
        let colour = |colour| if has_colours { Style::new().fg(colour) } else { Style::new() };
        Self {
            faint: Style::new().add_modifier(Modifier::DIM),
            strong: Style::new().add_modifier(Modifier::BOLD),
            trouble: colour(Color::Red).add_modifier(Modifier::BOLD),
            used: colour(Color::Green),
            kept: colour(Color::Yellow),
        }
    }
}

/// The rest of an area, from which lines are taken at the top.
struct Room(Rect);

impl Room {
    /// Takes the next `lines` lines, or as many as are left.
    fn take(&mut self, lines: usize) -> Rect {
        let height = u16::try_from(lines).unwrap_or(u16::MAX).min(self.0.height);
        let area = Rect { height, ..self.0 };
        self.0.y += height;
        self.0.height -= height;
        area
    }

    /// Takes the last line if there are more than `least`.
    fn take_last(&mut self, least: u16) -> Option<Rect> {
        (self.0.height > least).then(|| {
            self.0.height -= 1;
            Rect { y: self.0.y + self.0.height, height: 1, ..self.0 }
        })
    }
}

/// Draws the whole picture.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View, palette: Palette) {
    let mut room = Room(frame.area());
    header(frame, room.take(1), view, palette);
    if let Some(area) = room.take_last(3) {
        footer(frame, area, view, palette);
    }
    if let Some(problem) = &view.problem {
        let lines = wrapped_lines(problem, room.0.width);
        let paragraph = Paragraph::new(&**problem).style(palette.trouble).wrap(Wrap { trim: true });
        frame.render_widget(paragraph, room.take(lines));
    }
    if view.is_helping {
        return help(frame, room.0, palette);
    }
    match view.model() {
        Some((index, model)) => body(frame, room, view, (index, model), palette),
        None if view.problem.is_none() => {
            let said =
                if view.snapshot.is_some() { "the server has no model" } else { "asking ..." };
            frame.render_widget(Paragraph::new(said), room.0);
        }
        None => {}
    }
}

/// Returns the number of lines that a text takes. It is never too small: a word may leave up to its
/// own length of a line empty.
fn wrapped_lines(text: &str, width: u16) -> usize {
    let width = usize::from(width).max(1);
    let (mut lines, mut column) = (1, 0);
    for word in text.split(' ') {
        let length = Span::raw(word).width();
        if column > 0 && column + 1 + length > width {
            lines += 1;
            column = 0;
        }
        column += length + usize::from(column > 0);
        lines += (column.max(1) - 1) / width;
        column = if column > width { (column - 1) % width + 1 } else { column };
    }
    lines
}

fn header(frame: &mut Frame<'_>, area: Rect, view: &View, palette: Palette) {
    let left = Line::from(vec![
        Span::styled("trine top", palette.strong),
        Span::raw(format!("  {}", view.address)),
    ]);
    let right = match (&view.snapshot, &view.problem) {
        (_, Some(_)) => Span::styled("no answer", palette.trouble),
        (None, None) => Span::raw("asking"),
        (Some(snapshot), None) => Span::raw(format!("{} {}", snapshot.version, snapshot.phase)),
    };
    let is_wide = left.width() + 2 + right.width() <= usize::from(area.width);
    let right = Line::from(right);
    if is_wide {
        frame.render_widget(Paragraph::new(left), area);
        frame.render_widget(Paragraph::new(right).alignment(Alignment::Right), area);
    } else if view.problem.is_some() {
        frame.render_widget(Paragraph::new(right), area);
    } else {
        frame.render_widget(Paragraph::new(left), area);
    }
}

fn footer(frame: &mut Frame<'_>, area: Rect, view: &View, palette: Palette) {
    let model = if view.models().len() > 1 { "  Tab model" } else { "" };
    let line = Line::from(format!("q quit{model}  ? help"));
    frame.render_widget(Paragraph::new(line).style(palette.faint), area);
}

fn help(frame: &mut Frame<'_>, area: Rect, palette: Palette) {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for (label, meaning) in EXPLANATIONS {
        let label = Span::styled(format!("{label:<16}"), palette.strong);
        lines.push(Line::from(vec![label, Span::raw(meaning)]));
    }
    lines.push(Line::default());
    lines.push(Line::from(
        "q, Esc, Ctrl-C end; Tab and arrows choose a model; ? or Esc closes this",
    ));
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), area);
}

/// Draws the model, its numbers, the bar of blocks and the diagrams over time.
fn body(
    frame: &mut Frame<'_>,
    mut room: Room,
    view: &View,
    (index, model): (usize, &Model),
    palette: Palette,
) {
    let name = Line::styled(title(model, index, view.models().len()), palette.strong);
    frame.render_widget(Paragraph::new(name), room.take(1));
    let Some(engine) = &model.engine else { return };
    if room.0.height > 5 {
        frame.render_widget(Paragraph::new(&*model.device), room.take(1));
    }
    let facts = facts(engine, model.tower.as_ref(), view.rates(model));
    let text = grid(&facts, room.0.width, palette);
    let style = if view.problem.is_some() { palette.faint } else { Style::new() };
    let area = room.take(text.lines.len());
    frame.render_widget(Paragraph::new(text).style(style), area);
    if room.0.height >= 2 {
        blocks(frame, &mut room, engine, palette);
    }
    diagrams(frame, room.0, view, model, palette);
}

/// Arranges the numbers in as many columns as fit.
fn grid(facts: &[Fact], width: u16, palette: Palette) -> Text<'static> {
    let columns = usize::from((width / FACT_COLUMNS).max(1));
    let cell = usize::from(width) / columns;
    // In a narrow cell the number is more important than straight columns.
    let labels = if cell < NARROW_COLUMNS { 0 } else { LABEL_COLUMNS };
    let line = |row: &[Fact]| {
        let mut line = Line::default();
        for (column, Fact { label, value }) in row.iter().enumerate() {
            let start = column * cell;
            let gap = start.saturating_sub(line.width());
            line.push_span(Span::raw(" ".repeat(gap)));
            line.push_span(Span::styled(format!("{label:<labels$} "), palette.faint));
            // The space separates a number that is too long from the next one.
            line.push_span(Span::raw(format!("{value} ")));
        }
        line
    };
    facts.chunks(columns).map(line).collect::<Vec<_>>().into()
}

/// Draws a bar of all KV blocks: in use, kept, free.
fn blocks(frame: &mut Frame<'_>, room: &mut Room, engine: &Engine, palette: Palette) {
    let caption = Line::styled("KV blocks: █ used, ▒ kept, ░ free", palette.faint);
    frame.render_widget(Paragraph::new(caption), room.take(1));
    let width = usize::from(room.0.width);
    let columns = |count: u64| {
        let share = (count as f64 / engine.blocks.max(1) as f64).min(1.0);
        // Every count above zero must be visible.
        ((share * width as f64).round() as usize).max(usize::from(count > 0))
    };
    let used = columns(engine.blocks_running).min(width);
    let kept = columns(engine.blocks_kept).min(width - used);
    let free = width - used - kept;
    let bar = Line::from(vec![
        Span::styled("█".repeat(used), palette.used),
        Span::styled("▒".repeat(kept), palette.kept),
        Span::styled("░".repeat(free), palette.faint),
    ]);
    frame.render_widget(Paragraph::new(bar), room.take(1));
}

type Read = fn(&Sample) -> Option<f64>;

/// The diagrams over time: titles, units, and how to read the numbers.
const DIAGRAMS: [(&str, &str, Read); 4] = [
    ("generated", "tok/s", |sample| sample.rates.map(|rates| rates.generated)),
    ("prompts", "tok/s", |sample| sample.rates.map(|rates| rates.prompt)),
    ("batch", "rows", |sample| Some(sample.width as f64)),
    ("KV used", "blocks", |sample| Some(sample.blocks as f64)),
];

/// Draws as many diagrams over time as fit.
fn diagrams(frame: &mut Frame<'_>, area: Rect, view: &View, model: &Model, palette: Palette) {
    let across = if area.width >= 2 * DIAGRAM_COLUMNS { 2 } else { 1 };
    let down = (area.height / DIAGRAM_LINES).min(DIAGRAMS.len() as u16 / across);
    if down == 0 || area.width == 0 {
        return;
    }
    let height = (area.height / down).min(DIAGRAM_LINES_MAX);
    let width = (area.width - (across - 1)) / across;
    for (index, (name, unit, read)) in
        DIAGRAMS.into_iter().take(usize::from(across * down)).enumerate()
    {
        let (row, column) = (index as u16 / across, index as u16 % across);
        let place =
            Rect { x: area.x + column * (width + 1), y: area.y + row * height, width, height };
        let values = view.history.samples(&model.name).take(usize::from(width));
        let values: Vec<Option<f64>> = values.map(|sample| sample.and_then(read)).collect();
        let highest = values.iter().flatten().copied().fold(0.0, f64::max);
        let mut room = Room(place);
        let caption = format!("{name}, {unit}, highest {}", number(highest));
        frame.render_widget(Paragraph::new(Line::styled(caption, palette.faint)), room.take(1));
        let bars = values.into_iter().map(|value| bar(value, highest, room.0.height));
        let line = Sparkline::default()
            .data(bars)
            .max(8 * u64::from(room.0.height))
            .direction(RenderDirection::RightToLeft)
            .absent_value_symbol(" ")
            .style(palette.used);
        frame.render_widget(line, room.0);
    }
}

/// Scales a value to eighths of a line, where `highest` takes `height` lines.
fn bar(value: Option<f64>, highest: f64, height: u16) -> SparklineBar {
    let eighths = 8.0 * f64::from(height);
    let scaled = value.map(|value| match value / highest {
        share if share.is_finite() => (share.clamp(0.0, 1.0) * eighths).ceil() as u64,
        _ => 0,
    });
    SparklineBar::from(scaled)
}

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
