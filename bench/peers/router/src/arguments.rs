//! The command line (bench/peers/README.md).

pub const USAGE: &str = "usage: router_peer --workload FILE \
--structure radix_tree|concurrent_radix_tree|positional --event-size N [--ops speed|memory] [--jump N]";

pub struct Arguments {
    pub workload: String,
    pub structure: String,
    pub event_size: usize,
    pub memory: bool,
    pub jump: usize,
}

impl Arguments {
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut out =
            Self { workload: String::new(), structure: String::new(), event_size: 0, memory: false, jump: 8 };
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--workload" => out.workload = value,
                "--structure" => out.structure = value,
                "--event-size" => out.event_size = number(&name, &value)?,
                "--jump" => out.jump = number(&name, &value)?,
                "--ops" if value == "speed" || value == "memory" => out.memory = value == "memory",
                "--ops" => return Err(format!("--ops takes speed or memory, not {value}")),
                _ => return Err(format!("unknown option {name}")),
            }
        }
        if out.workload.is_empty() || out.structure.is_empty() || out.event_size == 0 {
            return Err("--workload, --structure and --event-size are needed".into());
        }
        Ok(out)
    }
}

fn number(name: &str, value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(format!("{name} takes a number above 0, not {value}")),
    }
}
