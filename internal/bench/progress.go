package bench

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	barWidth = 30
	barEvery = 100 * time.Millisecond
	// barAfter delays the bar, so that the bar of a short task does not flicker.
	barAfter = 500 * time.Millisecond
)

// progress shows a bar on a terminal until stop is called. done returns how much of total is done. If done is nil, the
// bar shows only the time.
func (e *env) progress(label string, total int64, done func() int64) (stop func()) {
	if !e.Live {
		return func() {}
	}
	quit := make(chan struct{})
	var drawing sync.WaitGroup
	start := time.Now()
	drawing.Go(func() {
		tick := time.NewTicker(barEvery)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				e.printf("\r\x1b[K")
				return
			case <-tick.C:
				if took := time.Since(start); took > barAfter {
					var so int64
					if done != nil {
						so = done()
					}
					e.printf("\r\x1b[K%s", bar(label, total, so, took))
				}
			}
		}
	})
	return func() {
		close(quit)
		drawing.Wait()
	}
}

// bar returns one state of the progress bar.
func bar(label string, total, done int64, took time.Duration) string {
	if total <= 0 {
		return fmt.Sprintf("%s, %.0f s", label, took.Seconds())
	}
	done = min(max(done, 0), total)
	filled := int(barWidth * done / total)
	return fmt.Sprintf("[%s%s] %3d %% %s", strings.Repeat("=", filled), strings.Repeat(" ", barWidth-filled), 100*done/total, label)
}
