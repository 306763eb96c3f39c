package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// print writes one table: a line for each set of settings.
func (r *result) print(out io.Writer) error {
	where := "a server of yours"
	if r.Private {
		where = "private"
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s, %d CPUs, PostgreSQL %s (%s): synchronous_commit %s, fsync %s, shared_buffers %s\n",
		r.Go, r.CPUs, r.Server.Version, where, r.Server.SynchronousCommit, r.Server.Fsync, r.Server.SharedBuffers)
	fmt.Fprintf(&text, "%s\n", r.versions())
	for _, why := range r.LeftOut {
		fmt.Fprintf(&text, "left out: %s\n", why)
	}
	fmt.Fprintf(&text, "median of %d round(s); drain of %d events; latencies in ms at %d/s, from COMMIT to the handler, the second while a foreign\n"+
		"write transaction and an old snapshot are open; %d writers in events/s; sync_commit is that of the systems' own connections\n\n",
		r.Rounds, r.Events, r.Rate, r.Writers)
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	rows := []string{"SYSTEM\tDRAIN\tevents/s\tnotifyd is\tLATENCY p50 / p99\tBEHIND p50 / p99\tWRITERS alone\tbeside / handled\tSETTINGS"}
	for i := range r.Systems {
		rows = append(rows, strings.Join(r.Systems[i].cells(), "\t"))
	}
	if _, err := io.WriteString(table, strings.Join(rows, "\n")+"\n"); err != nil {
		return err
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, s := range r.Systems {
		if s.Drain != nil && s.Drain.Repeats > 0 {
			fmt.Fprintf(&text, "%s (%s) called the handler %d times too often\n", s.System, s.Settings, s.Drain.Repeats)
		}
	}
	_, err := io.WriteString(out, text.String()+"\n")
	return err
}

// versions returns the versions, sorted by name.
func (r *result) versions() string {
	var all []string
	for name, version := range r.Versions {
		all = append(all, name+" "+version)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// cells returns a line of the table, with a dash for figures that were not measured.
func (s *systemResult) cells() []string {
	const none = "-"
	cells := []string{s.System, none, none, none, s.Latency.cell(), s.Behind.cell(), none, none, s.Settings}
	if d := s.Drain; d != nil {
		cells[1], cells[2] = fmt.Sprintf("%.2f s", d.Seconds), fmt.Sprintf("%.0f", d.PerSecond)
		var ratios []string
		for _, ratio := range d.Ratios {
			ratios = append(ratios, fmt.Sprintf("%.1fx", ratio))
		}
		cells[3] = strings.Join(ratios, " / ")
	}
	if w := s.Writers; w != nil {
		cells[6], cells[7] = fmt.Sprintf("%.0f", w.Alone), fmt.Sprintf("%.0f / %.0f", w.Beside, w.Handled)
	}
	return cells
}

func (l *latencyResult) cell() string {
	if l == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f / %.2f%s", l.Median.P50, l.Median.P99, l.Median.waited())
}
