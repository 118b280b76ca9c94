//! The options about pictures and the vision tower that reads them.

use std::path::PathBuf;

use clap::Args;
use trine_pictures::Limits;
use trine_session::picture_file::expanded;
use trine_session::tower::TowerChoice;

/// Which vision tower a model has.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Images")]
pub(crate) struct TowerArgs {
    /// The GGUF file of the vision tower that reads images [default: the one in the model's
    /// files, or the first mmproj file beside them that fits]
    #[arg(long, value_name = "FILE", conflicts_with = "no_mmproj")]
    pub(crate) mmproj: Option<PathBuf>,

    /// Take texts only: load no vision tower
    #[arg(long)]
    pub(crate) no_mmproj: bool,
}

impl TowerArgs {
    /// Returns the tower that was chosen.
    pub(crate) fn choice(&self) -> TowerChoice {
        match &self.mmproj {
            Some(file) => TowerChoice::File(expanded(file)),
            None if self.no_mmproj => TowerChoice::Off,
            None => TowerChoice::Found,
        }
    }
}

/// Pictures for a prompt.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Images")]
pub(crate) struct PictureArgs {
    /// An image that the prompt, or the first message of a chat, is about: PNG, JPEG, WebP or GIF;
    /// can be repeated; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["raw", "no_mmproj"])]
    pub(crate) image: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) tower: TowerArgs,
}

/// What `trine bench --image` measures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BenchPicture {
    /// Random pixels, from left to right and from top to bottom.
    Random(Option<(u32, u32)>),
    /// A file.
    File(PathBuf),
}

impl BenchPicture {
    /// Reads the sides of a random picture, such as 1024x768, or the path of a file; nothing is a
    /// random picture of the usual sides.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let sides = || {
            let (width, height) = text.split_once(['x', 'X'])?;
            Some((width.parse::<u32>().ok()?, height.parse::<u32>().ok()?))
        };
        let Some((width, height)) = sides() else {
            return Ok(match text {
                "" => Self::Random(None),
                path => Self::File(PathBuf::from(path)),
            });
        };
        let Limits { pixels, side, .. } = Limits::default();
        let found = u64::from(width) * u64::from(height);
        match (1..=pixels).contains(&found) && width.max(height) <= side {
            true => Ok(Self::Random(Some((width, height)))),
            false => Err(format!("an image has 1 to {pixels} pixels, and sides of at most {side}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_to_measure_are_files_or_sides() {
        let parse = BenchPicture::parse;
        assert_eq!(parse(""), Ok(BenchPicture::Random(None)));
        assert_eq!(parse("640x480"), Ok(BenchPicture::Random(Some((640, 480)))));
        assert_eq!(parse("box.png"), Ok(BenchPicture::File(PathBuf::from("box.png"))));
        for wrong in ["0x5", "99999x1", "70000x70000"] {
            assert!(parse(wrong).unwrap_err().contains("pixels"), "{wrong}");
        }
    }
}
