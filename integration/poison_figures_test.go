//go:build figures

package integration

import (
	"fmt"
	"testing"
)

// TestManyPoisonFigures prints the table of docs/concepts.md with real servers: the time until 1,000 good events are delivered
// beside bad ones. Webhooks that hang do so for half a second.
func TestManyPoisonFigures(t *testing.T) { //nolint:paralleltest // one after the other
	all := poisonTo(t)
	shapes := []poison{{front: 1}, {front: 3}, {front: 12}, {front: 20}, {front: 100}, {share: 10}, {share: 50}, {share: 90}}
	for _, name := range []string{ //nolint:paralleltest // see above
		"webhook, 503", "webhook, drop", "mail, 421", "kafka, no topic", "webhook, hang",
	} {
		for _, p := range shapes {
			for _, ownType := range []bool{true, false} {
				p.ownType = ownType
				for _, mode := range bothModes() {
					t.Run(fmt.Sprintf("%s/%s/%s", name, p, mode), func(t *testing.T) {
						fmt.Printf("%s | %s | %s | %.1f s\n", name, p, mode, manyPoison(t, mode, all[name](t), 1000, p).Seconds())
					})
				}
			}
		}
	}
}
