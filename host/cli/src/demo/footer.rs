//! Lines that stay at the bottom of the terminal while the console scrolls above them.

use std::io::{self, Write};

use rustix::termios::{Winsize, tcgetwinsize};

/// The fixed lines. Dropping it gives the whole terminal back.
#[derive(Debug)]
pub struct Footer {
    height: u16,
    size: Option<(u16, u16)>,
    shown: Vec<String>,
}

impl Footer {
    /// Takes so many lines from the bottom of the terminal.
    pub fn new(height: u16) -> Self {
        Self {
            height,
            size: None,
            shown: Vec::new(),
        }
    }

    /// Shows the lines, if they or the size of the terminal changed.
    ///
    /// # Errors
    ///
    /// The terminal is gone.
    pub fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let Winsize { ws_row, ws_col, .. } = tcgetwinsize(io::stdout())?;
        // Too low for a footer: the console alone is worth more.
        if ws_row < self.height + 5 || ws_col < 20 {
            return self.close();
        }
        let resized = self.size != Some((ws_row, ws_col));
        if !resized && self.shown == lines {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        out.write_all(picture(lines, self.height, ws_row, ws_col, resized).as_bytes())?;
        out.flush()?;
        self.size = Some((ws_row, ws_col));
        self.shown = lines.to_vec();
        Ok(())
    }

    /// Gives the lines back.
    ///
    /// # Errors
    ///
    /// The terminal is gone.
    pub fn close(&mut self) -> io::Result<()> {
        let Some((rows, _)) = self.size.take() else {
            return Ok(());
        };
        self.shown.clear();
        let mut out = io::stdout().lock();
        // Whole screen scrolls again; clear from the first fixed line on, and stay there.
        write!(out, "\x1b[0m\x1b[r\x1b[{};1H\x1b[J", rows - self.height + 1)?;
        out.flush()
    }
}

impl Drop for Footer {
    fn drop(&mut self) {
        // A terminal that has gone needs nothing back.
        let _ = self.close();
    }
}

/// Escape sequences that draw the lines below the scrolling part of a terminal of that size.
fn picture(lines: &[String], height: u16, rows: u16, columns: u16, resized: bool) -> String {
    let scrolling = rows - height;
    let mut text = String::new();
    if resized {
        // Push what stands where the footer comes up, then let only the part above it scroll. Setting
        // the region moves the cursor, so it is put at the end of that part.
        text.push_str(&"\n".repeat(height.into()));
        text.push_str(&format!("\x1b[1;{scrolling}r\x1b[{scrolling};1H"));
    }
    text.push_str("\x1b7");
    for index in 0..height {
        let line = lines.get(usize::from(index)).map_or("", String::as_str);
        let cut: String = line.chars().take(columns.into()).collect();
        text.push_str(&format!(
            "\x1b[{};1H\x1b[0;7m{cut}\x1b[K\x1b[0m",
            scrolling + 1 + index
        ));
    }
    text.push_str("\x1b8");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_and_the_cursor_returns() {
        let lines = ["abcdef".to_owned()];
        let text = picture(&lines, 2, 24, 4, false);
        assert_eq!(
            text,
            "\x1b7\x1b[23;1H\x1b[0;7mabcd\x1b[K\x1b[0m\x1b[24;1H\x1b[0;7m\x1b[K\x1b[0m\x1b8"
        );
        assert!(picture(&lines, 2, 24, 4, true).starts_with("\n\n\x1b[1;22r\x1b[22;1H\x1b7"));
    }
}
