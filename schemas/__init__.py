"""The wire and the log: frozen structs, subjects and codes. No I/O, no clock, no rules.

Everything that crosses a process boundary in Tenure is declared here and nowhere else: commands and
replies, events, evidence, work orders, invocations. The other packages import these; this package
imports none of them.

JSON is the encoding of commands, replies, events and evidence, so that a person with any NATS client
can take part and an auditor can read the log without this program. Invocations use MessagePack,
because they carry vectors. A worker generation is 64 bits wide and therefore a decimal string in JSON.
"""
