package dispatch

import (
	"maps"
	"slices"

	"pgregory.net/rapid"
)

// feed acts like a unit: returned deliveries go first.
func (m *batchModel) feed() bool {
	if o := m.lane.Order(Key{}); o.Stopped {
		m.collect()
		if !m.gone && !m.lane.GoOn(o.Returned) {
			m.t.Fatal("a delivery was released meanwhile")
		}
	}
	again := m.again
	if m.blocked() {
		again = nil
		if i := slices.IndexFunc(m.again, func(d Delivery) bool { return d.Leads }); i >= 0 {
			again = m.again[i : i+1]
		}
	}
	if len(again) == 0 {
		return true
	}
	all := slices.Clone(again[:m.capacity(min(len(again), 100))])
	m.again = slices.DeleteFunc(m.again, func(d Delivery) bool {
		return slices.ContainsFunc(all, func(one Delivery) bool { return one.Event == d.Event })
	})
	m.hand(all, nil)
	return false
}

func (m *batchModel) feedLines() bool {
	m.collect()
	for k := range m.ready {
		n := 100
		if m.draw != nil {
			n = rapid.IntRange(1, n).Draw(m.draw, "rows")
		}
		n = m.capacity(n)
		if n == 0 {
			return true
		}
		delete(m.ready, k)
		ids := m.line(k)
		whole := n >= len(ids)
		var all []Delivery
		for _, id := range ids[:min(n, len(ids))] {
			r := m.rows[id]
			if m.held[id] || r.state == rowDead || r.state == rowRetry && !r.due {
				whole = false
				break
			}
			all = append(all, m.row(id, true))
		}
		switch {
		case whole && len(all) == 0:
			m.lane.SetRows(k, NoRows)
		case whole:
			m.hand(all, []Key{k})
		default:
			m.hand(all, nil)
		}
		return false
	}
	return true
}

func (m *batchModel) row(id int64, leads bool) Delivery {
	m.held[id] = true
	e := m.events[id-1]
	return Delivery{Event: e, Key: m.key(e), Failures: m.rows[id].failures, Row: true, Leads: leads}
}

// feedDue takes rows that are due and first of their line, or replayed, or without a line.
func (m *batchModel) feedDue() {
	var all []Delivery
	for _, id := range slices.Sorted(maps.Keys(m.rows)) {
		r, k := m.rows[id], m.key(m.events[id-1])
		if r.state != rowRetry || !r.due || m.held[id] {
			continue
		}
		if k != (Key{}) && m.line(k)[0] != id && !m.replayed[id] {
			continue
		}
		all = append(all, m.row(id, k != Key{}))
	}
	all2 := all[:m.capacity(len(all))]
	for _, d := range all[len(all2):] {
		delete(m.held, d.Event.ID)
	}
	m.hand(all2, nil)
}

func (m *batchModel) read(n int) {
	if m.blocked() {
		return
	}
	n = m.capacity(min(n, len(m.events)-m.next))
	var all []Delivery
	for range n {
		e := m.events[m.next]
		m.next++
		all = append(all, Delivery{Event: e, Key: m.key(e)})
	}
	m.hand(all, nil)
}
