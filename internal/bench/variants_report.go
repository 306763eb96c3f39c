package bench

import (
	"fmt"
	"slices"
)

// report writes the figures of all variants, a column for each.
func (c *compare) report(r VariantsResult) {
	c.printf("\n")
	for _, who := range contenders() {
		for _, v := range r.Variants {
			if v.Name == who.name {
				c.printf("%-12s%s\n", who.name, who.about)
			}
		}
	}
	c.printf("\n%s events of %d B, of %d aggregates; lost/duplicates/out of order in one cell\n\n", number(float64(r.Events)), r.Payload, r.Keys)
	var names []string
	for _, v := range r.Variants {
		names = append(names, v.Name)
	}
	s := variantSheet{newSheet(c.Out, names, r.Variants), c.DatabaseURL == ""}
	s.drains()
	s.writing(c.want)
	s.note()
}

// variantSheet is the table of a comparison.
type variantSheet struct {
	sheet[VariantResult]

	private bool // the server is private, so its CPU time is known
}

// part returns a function that writes rows of a part of the bench. of returns the measurement of a variant in that part,
// or nil.
func part[P any](s variantSheet, of func(VariantResult) *P) func(name string, cell func(*P) string) {
	return func(name string, cell func(*P) string) {
		s.figure(name, func(v VariantResult) string {
			if p := of(v); p != nil {
				return cell(p)
			}
			return ""
		})
	}
}

// first returns the first element that is wanted, or nil.
func first[P any](all []P, wanted func(P) bool) *P {
	if i := slices.IndexFunc(all, wanted); i >= 0 {
		return &all[i]
	}
	return nil
}

// drains writes the rows of the drains, for each number of workers.
func (s variantSheet) drains() {
	for workers := 1; workers <= variantWorkers; workers++ {
		row := part(s, func(v VariantResult) *VariantDrain {
			return first(v.Drains, func(d VariantDrain) bool { return d.Workers == workers })
		})
		at := fmt.Sprintf("%d at work: ", workers)
		row(at+"seconds", func(d *VariantDrain) string { return fmt.Sprintf("%.2f", d.Seconds) })
		if s.private {
			row(at+"PostgreSQL, CPU s", func(d *VariantDrain) string { return fmt.Sprintf("%.2f", d.PostgresCPU) })
		}
		row(at+"workers, CPU s", func(d *VariantDrain) string { return fmt.Sprintf("%.2f", d.WorkerCPU) })
		row(at+"rows changed", func(d *VariantDrain) string { return number(float64(d.ChangedRows)) })
		row(at+"dead rows", func(d *VariantDrain) string { return number(float64(d.DeadRows)) })
		row(at+"WAL, MiB", func(d *VariantDrain) string { return fmt.Sprintf("%.1f", d.WALBytes/(1<<20)) })
		row(at+"lost/dup./order", func(d *VariantDrain) string { return d.cell() })
	}
}

// writing writes the rows of the parts with writers.
func (s variantSheet) writing(o VariantsOptions) {
	row := part(s, func(v VariantResult) *VariantWriters { return v.Writers })
	row(fmt.Sprintf("%d writers: inserts/s", o.Writers), func(w *VariantWriters) string { return number(w.InsertsPerSecond) })
	row("  caught up after, s", func(w *VariantWriters) string { return fmt.Sprintf("%.2f", w.CaughtUpSeconds) })
	row("  lost/dup./order", func(w *VariantWriters) string { return w.cell() })
	for _, foreign := range Foreigns() {
		row := part(s, func(v VariantResult) *VariantOpen {
			return first(v.Open, func(o VariantOpen) bool { return o.Transaction == foreign })
		})
		row(fmt.Sprintf("open %d s, %s: silent, s", o.OpenSeconds, foreign), func(p *VariantOpen) string { return fmt.Sprintf("%.2f", p.SilentSeconds) })
		row("  longest commit, ms", func(p *VariantOpen) string { return fmt.Sprintf("%.1f", p.LongestCommitMS) })
		row("  lost/dup./order", func(p *VariantOpen) string { return p.cell() })
	}
	for workers := 1; workers <= variantWorkers; workers++ {
		row := part(s, func(v VariantResult) *VariantOrder {
			return first(v.Order, func(o VariantOrder) bool { return o.Workers == workers })
		})
		row(fmt.Sprintf("commits out of order, %d at work", workers), func(o *VariantOrder) string { return number(float64(o.Written)) })
		row("  lost/dup./order", func(o *VariantOrder) string { return o.cell() })
	}
}
