package bench

import "fmt"

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
	s := sheet{variants: r.Variants, private: c.DatabaseURL == ""}
	for _, v := range r.Variants {
		s.names = append(s.names, v.Name)
	}
	s.grid = newTable(c.Out, "", s.names...)
	s.drains()
	s.writing(c.want)
	s.grid.note()
}

// sheet is the table of a comparison.
type sheet struct {
	grid     grid
	names    []string
	variants []VariantResult
	private  bool // the server is, and its CPU time known
}

// row writes a row, if any variant has the figure.
func (s *sheet) row(name string, cell func(VariantResult) string) {
	var cells []string
	known := false
	for _, v := range s.variants {
		one := cell(v)
		if one == "" {
			one = "-"
		} else {
			known = true
		}
		cells = append(cells, one)
	}
	if known {
		s.grid.row(name, cells...)
	}
}

// drains writes the rows of the drains, for each number of workers.
func (s *sheet) drains() {
	for workers := 1; workers <= variantWorkers; workers++ {
		of := func(figure func(VariantDrain) string) func(VariantResult) string {
			return func(v VariantResult) string {
				for _, d := range v.Drains {
					if d.Workers == workers {
						return figure(d)
					}
				}
				return ""
			}
		}
		at := fmt.Sprintf("%d at work: ", workers)
		s.row(at+"seconds", of(func(d VariantDrain) string { return fmt.Sprintf("%.2f", d.Seconds) }))
		if s.private {
			s.row(at+"PostgreSQL, CPU s", of(func(d VariantDrain) string { return fmt.Sprintf("%.2f", d.PostgresCPU) }))
		}
		s.row(at+"workers, CPU s", of(func(d VariantDrain) string { return fmt.Sprintf("%.2f", d.WorkerCPU) }))
		s.row(at+"rows changed", of(func(d VariantDrain) string { return number(float64(d.ChangedRows)) }))
		s.row(at+"dead rows", of(func(d VariantDrain) string { return number(float64(d.DeadRows)) }))
		s.row(at+"WAL, MiB", of(func(d VariantDrain) string { return fmt.Sprintf("%.1f", d.WALBytes/(1<<20)) }))
		s.row(at+"lost/dup./order", of(func(d VariantDrain) string { return d.cell() }))
	}
}

// writing writes the rows of the parts with writers.
func (s *sheet) writing(o VariantsOptions) {
	writers := func(figure func(VariantWriters) string) func(VariantResult) string {
		return func(v VariantResult) string {
			if v.Writers == nil {
				return ""
			}
			return figure(*v.Writers)
		}
	}
	s.row(fmt.Sprintf("%d writers: inserts/s", o.Writers), writers(func(w VariantWriters) string { return number(w.InsertsPerSecond) }))
	s.row("  caught up after, s", writers(func(w VariantWriters) string { return fmt.Sprintf("%.2f", w.CaughtUpSeconds) }))
	s.row("  lost/dup./order", writers(func(w VariantWriters) string { return w.cell() }))
	for i, foreign := range Foreigns() {
		open := func(figure func(VariantOpen) string) func(VariantResult) string {
			return func(v VariantResult) string {
				if i >= len(v.Open) {
					return ""
				}
				return figure(v.Open[i])
			}
		}
		s.row(fmt.Sprintf("open %d s, %s: silent, s", o.OpenSeconds, foreign), open(func(p VariantOpen) string { return fmt.Sprintf("%.2f", p.SilentSeconds) }))
		s.row("  longest commit, ms", open(func(p VariantOpen) string { return fmt.Sprintf("%.1f", p.LongestCommitMS) }))
		s.row("  lost/dup./order", open(func(p VariantOpen) string { return p.cell() }))
	}
	for workers := 1; workers <= variantWorkers; workers++ {
		order := func(figure func(VariantOrder) string) func(VariantResult) string {
			return func(v VariantResult) string {
				for _, o := range v.Order {
					if o.Workers == workers {
						return figure(o)
					}
				}
				return ""
			}
		}
		s.row(fmt.Sprintf("commits out of order, %d at work", workers), order(func(o VariantOrder) string { return number(float64(o.Written)) }))
		s.row("  lost/dup./order", order(func(o VariantOrder) string { return o.cell() }))
	}
}
