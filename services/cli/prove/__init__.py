"""From files to an approved candidate: sets, assessments, profiles, probes, approvals."""
