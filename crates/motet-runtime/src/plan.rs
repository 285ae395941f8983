//! The order in which modules are loaded: those that a module requires come before it, and a cycle is refused.

use crate::descriptor::{Fault, Source};
use motet_session::modules::MAX_MODULES;
use std::path::Path;

/// Where descriptors come from.
pub trait Library {
    /// Whether a module is loaded already.
    fn is_loaded(&self, name: &str) -> bool;
    /// The descriptor of a module, beside others in this folder.
    fn find(&mut self, folder: &Path, name: &str) -> Result<Source, Fault>;
}

/// The modules to load for `first`, in order; it is the last one.
pub fn order(first: Source, library: &mut impl Library) -> Result<Vec<Source>, Fault> {
    let name = &first.descriptor.name;
    if library.is_loaded(name) {
        return Err(Fault(format!("{name} is loaded already")));
    }
    let mut ordered = Vec::new();
    visit(first, &mut Vec::new(), &mut ordered, library)?;
    Ok(ordered)
}

/// Appends what a module requires, then the module. `above`: the modules that lead to it.
fn visit(
    source: Source,
    above: &mut Vec<String>,
    ordered: &mut Vec<Source>,
    library: &mut impl Library,
) -> Result<(), Fault> {
    above.push(source.descriptor.name.clone());
    if above.len() + ordered.len() > MAX_MODULES {
        return Err(Fault(format!("needs more than {MAX_MODULES} modules")));
    }
    for name in source.descriptor.dependencies() {
        if let Some(at) = above.iter().position(|module| module == name) {
            return Err(Fault(format!("modules require each other: {} -> {name}", above[at..].join(" -> "))));
        }
        if library.is_loaded(name) || ordered.iter().any(|done| done.descriptor.name == name) {
            continue;
        }
        let found = library.find(&source.folder, name);
        let found = found.map_err(|fault| Fault(format!("{} requires {name}: {fault}", source.descriptor.name)))?;
        visit(found, above, ordered, library)?;
    }
    above.pop();
    ordered.push(source);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::{Format, parse};
    use proptest::prelude::*;
    use std::path::PathBuf;

    /// Modules by number, each with those that it requires.
    struct Numbered(Vec<Vec<usize>>, Vec<usize>);

    impl Numbered {
        fn source(&self, number: usize) -> Source {
            let requires: Vec<_> = self.0[number].iter().map(|other| format!("\"m{other}\"")).collect();
            let text = format!("name='m{number}'\ndriver='exec'\nunits='x'\nrequires=[{}]", requires.join(","));
            Source { descriptor: parse(Format::Toml, text.as_bytes()).unwrap(), folder: PathBuf::new() }
        }
    }

    impl Library for Numbered {
        fn is_loaded(&self, name: &str) -> bool {
            self.1.iter().any(|loaded| format!("m{loaded}") == name)
        }

        fn find(&mut self, _: &Path, name: &str) -> Result<Source, Fault> {
            let number: usize = name[1..].parse().unwrap();
            if number < self.0.len() { Ok(self.source(number)) } else { Err(Fault("none".to_owned())) }
        }
    }

    fn order_of(requires: &[&[usize]], loaded: &[usize], first: usize) -> Result<Vec<String>, String> {
        let mut library = Numbered(requires.iter().map(|list| list.to_vec()).collect(), loaded.to_vec());
        let ordered = order(library.source(first), &mut library).map_err(|fault| fault.0)?;
        Ok(ordered.into_iter().map(|source| source.descriptor.name).collect())
    }

    #[test]
    fn requirements_come_first_and_once() {
        assert_eq!(order_of(&[&[1, 2], &[3], &[3], &[]], &[], 0).unwrap(), ["m3", "m1", "m2", "m0"]);
        assert_eq!(order_of(&[&[1, 2], &[3], &[3], &[]], &[1, 3], 0).unwrap(), ["m2", "m0"]);
    }

    #[test]
    fn cycles_and_missing_modules_are_refused() {
        assert_eq!(order_of(&[&[0]], &[], 0).unwrap_err(), "modules require each other: m0 -> m0");
        let cycle = order_of(&[&[1], &[2], &[3], &[1]], &[], 0).unwrap_err();
        assert_eq!(cycle, "modules require each other: m1 -> m2 -> m3 -> m1");
        assert_eq!(order_of(&[&[1], &[7]], &[], 0).unwrap_err(), "m1 requires m7: none");
        assert_eq!(order_of(&[&[]], &[0], 0).unwrap_err(), "m0 is loaded already");
        let chain: Vec<Vec<usize>> = (0..200).map(|n| if n < 199 { vec![n + 1] } else { vec![] }).collect();
        let chain: Vec<&[usize]> = chain.iter().map(Vec::as_slice).collect();
        assert!(order_of(&chain, &[], 0).unwrap_err().contains("more than 128"));
    }

    proptest! {
        /// Any graph: either an order in which every module follows what it requires, or a real cycle.
        #[test]
        fn every_graph_has_an_order_or_a_cycle(graph in prop::collection::vec(prop::collection::vec(0..12usize, 0..3), 12)) {
            let graph_of: Vec<&[usize]> = graph.iter().map(Vec::as_slice).collect();
            match order_of(&graph_of, &[], 0) {
                Ok(ordered) => {
                    for (at, name) in ordered.iter().enumerate() {
                        let number: usize = name[1..].parse().unwrap();
                        for required in &graph[number] {
                            let name = format!("m{required}");
                            prop_assert!(ordered[..at].contains(&name));
                        }
                    }
                }
                Err(why) => {
                    let path: Vec<usize> = why.strip_prefix("modules require each other: ").unwrap()
                        .split(" -> ").map(|name| name[1..].parse().unwrap()).collect();
                    prop_assert!(path.len() > 1 && path.first() == path.last());
                    prop_assert!(path.windows(2).all(|step| graph[step[0]].contains(&step[1])));
                }
            }
        }
    }
}
