//! The command line, the same for every peer program (bench/peers/README.md).

pub const USAGE: &str = "usage: kvbm_peer --workload FILE --backend lru|multi_lru|lineage|hashmap \
--op cycle|match_inactive|match_active|match_shared|bulk_drop|match_miss \
[--frequency on|off] [--events on|off] [--threads N] [--rounds N]";

pub struct Arguments {
    pub workload: String,
    pub backend: String,
    pub op: String,
    pub frequency: bool,
    pub events: bool,
    pub threads: usize,
    /// How often the operation goes over its chains; 0 = the operation's own default.
    pub rounds: usize,
}

impl Arguments {
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut out = Self {
            workload: String::new(),
            backend: String::new(),
            op: String::new(),
            frequency: true,
            events: false,
            threads: 1,
            rounds: 0,
        };
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--workload" => out.workload = value,
                "--backend" => out.backend = value,
                "--op" => out.op = value,
                "--frequency" => out.frequency = switch(&name, &value)?,
                "--events" => out.events = switch(&name, &value)?,
                "--threads" => out.threads = number(&name, &value)?,
                "--rounds" => out.rounds = number(&name, &value)?,
                _ => return Err(format!("unknown option {name}")),
            }
        }
        for (name, value) in [("--workload", &out.workload), ("--backend", &out.backend), ("--op", &out.op)] {
            if value.is_empty() {
                return Err(format!("{name} is missing"));
            }
        }
        if out.threads > 1 && out.op != "match_active" && out.op != "match_shared" {
            return Err(format!(
                "--threads {} works with match_active and match_shared, not with {}",
                out.threads, out.op
            ));
        }
        Ok(out)
    }
}

fn switch(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{name} takes on or off, not {value}")),
    }
}

fn number(name: &str, value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(format!("{name} takes a number above 0, not {value}")),
    }
}
