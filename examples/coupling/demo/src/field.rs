//! Temperature fields: reads the VTK files that the codes write.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use roxmltree::{Document, Node};

/// Cell temperatures on a uniform grid.
#[derive(Clone, Debug)]
pub struct Field {
    /// Cells along x.
    pub columns: usize,
    /// Cells along y.
    pub rows: usize,
    /// Lower left corner, m.
    pub origin: [f64; 2],
    /// Cell size, m.
    pub spacing: [f64; 2],
    /// K, row by row from the lowest.
    pub values: Vec<f64>,
}

impl Field {
    /// Reads the last field of a code (`fluid` or `solid`) from a run's directory.
    pub fn read_last(directory: &Path, code: &str) -> Result<Self> {
        let collection = directory.join(format!("{code}.pvd"));
        let text = read(&collection)?;
        let document = Document::parse(&text)?;
        let last = document.descendants().rfind(|node| node.has_tag_name("DataSet")).context("an empty collection")?;
        Self::read_pieces(&directory.join(attribute(last, "file")?))
    }

    fn read_pieces(index: &Path) -> Result<Self> {
        let text = read(index)?;
        let document = Document::parse(&text)?;
        let grid = find(&document, "PImageData")?;
        let extent = numbers::<usize>(attribute(grid, "WholeExtent")?)?;
        let origin = numbers::<f64>(attribute(grid, "Origin")?)?;
        let spacing = numbers::<f64>(attribute(grid, "Spacing")?)?;
        let (columns, rows) = (extent[1], extent[3]);
        let mut values = vec![f64::NAN; columns * rows];
        for piece in document.descendants().filter(|node| node.has_tag_name("Piece")) {
            let piece_extent = numbers::<usize>(attribute(piece, "Extent")?)?;
            let data = read_piece(&index.with_file_name(attribute(piece, "Source")?))?;
            let (first, width) = (piece_extent[0], piece_extent[1] - piece_extent[0]);
            ensure!(data.len() == width * rows, "a piece of {} has the wrong size", index.display());
            for (row, line) in data.chunks_exact(width).enumerate() {
                values[row * columns + first..][..width].copy_from_slice(line);
            }
        }
        ensure!(values.iter().all(|value| value.is_finite()), "{} has holes", index.display());
        Ok(Self { columns, rows, origin: [origin[0], origin[1]], spacing: [spacing[0], spacing[1]], values })
    }

    /// K.
    pub fn at(&self, column: usize, row: usize) -> f64 {
        self.values[row * self.columns + column]
    }

    /// y of a row's centre, m.
    pub fn y(&self, row: usize) -> f64 {
        self.origin[1] + (row as f64 + 0.5) * self.spacing[1]
    }

    /// Largest difference from a function of y, K.
    pub fn largest_error(&self, exact: impl Fn(f64) -> f64) -> f64 {
        let row_error = |row| (0..self.columns).map(move |c| (c, row));
        (0..self.rows)
            .flat_map(row_error)
            .map(|(column, row)| (self.at(column, row) - exact(self.y(row))).abs())
            .fold(0.0, f64::max)
    }

    /// Root of the mean square difference from a function of y, K.
    pub fn mean_error(&self, exact: impl Fn(f64) -> f64) -> f64 {
        let square = |row: usize, column: usize| (self.at(column, row) - exact(self.y(row))).powi(2);
        let sum: f64 = (0..self.rows).map(|row| (0..self.columns).map(|c| square(row, c)).sum::<f64>()).sum();
        (sum / self.values.len() as f64).sqrt()
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn find<'a>(document: &'a Document, tag: &str) -> Result<Node<'a, 'a>> {
    document.descendants().find(|node| node.has_tag_name(tag)).with_context(|| format!("no {tag}"))
}

fn attribute<'a>(node: Node<'a, 'a>, name: &str) -> Result<&'a str> {
    node.attribute(name).with_context(|| format!("no {name}"))
}

fn numbers<T: std::str::FromStr>(text: &str) -> Result<Vec<T>> {
    let parsed = text.split_whitespace().map(|word| word.parse().ok().with_context(|| format!("not a number: {word}")));
    parsed.collect()
}

fn read_piece(path: &Path) -> Result<Vec<f64>> {
    let text = read(path)?;
    let document = Document::parse(&text)?;
    let encoded = find(&document, "DataArray")?.text().unwrap_or_default().trim();
    let bytes = base64::engine::general_purpose::STANDARD.decode(encoded)?;
    let Some((size, data)) = bytes.split_first_chunk::<8>() else { bail!("{} holds no data", path.display()) };
    ensure!(u64::from_le_bytes(*size) == data.len() as u64, "{} is cut short", path.display());
    Ok(data.chunks_exact(8).map(|word| f64::from_le_bytes(word.try_into().expect("eight bytes"))).collect())
}
