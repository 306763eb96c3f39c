package when

import (
	"testing"

	"github.com/notifyd/notifyd/delivery"
)

// BenchmarkMatch is the cost of a filter per event, reading the payload included: `go test -bench Match ./internal/when`.
func BenchmarkMatch(b *testing.B) {
	e := event(`{"order_id": "A-1042", "total": 129.90, "currency": "EUR", "customer": {"id": 77, "country": "DE", "email": "ann@example.com"},
		"items": [{"sku": "lamp", "n": 1, "price": 99.90}, {"sku": "bulb", "n": 3, "price": 10.00}], "note": "ring twice", "placed_at": "2026-11-25T10:00:00Z"}`)
	for name, texts := range map[string][]string{
		"type":     {`event.type.endsWith(".placed")`},
		"header":   {`headers.tenant == "acme"`},
		"payload":  {`payload.total > 100`},
		"two":      {`payload.customer.country == "DE" && payload.total > 100`},
		"list":     {`payload.items.exists(i, i.sku == "bulb")`},
		"5 routes": {`payload.total > 1`, `payload.total > 2`, `payload.currency == "EUR"`, `payload.customer.country == "FR"`, `has(payload.note)`},
	} {
		b.Run(name, func(b *testing.B) {
			var all []*Expression
			for _, text := range texts {
				all = append(all, compile(b, text))
			}
			b.ReportAllocs()
			for b.Loop() {
				c := delivery.Candidate{Event: e}
				for _, x := range all {
					if _, err := x.Match(&c); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
