package email

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// BenchmarkMail sends mails over eight connections: plain, signed with a key of 2048 bits, and with an attachment of 100 KB.
func BenchmarkMail(b *testing.B) {
	for name, change := range map[string]func(*Config){
		"plain":    func(*Config) {},
		"signed":   func(c *Config) { c.DKIM = []Signature{{Domain: "example.com", Selector: "rsa", KeyFile: "rsa.pem"}} },
		"attached": func(c *Config) { c.Attachments = []Attachment{{File: "100k.bin"}} },
		"both": func(c *Config) {
			c.DKIM = []Signature{{Domain: "example.com", Selector: "rsa", KeyFile: "rsa.pem"}}
			c.Attachments = []Attachment{{File: "100k.bin"}}
		},
	} {
		b.Run(name, func(b *testing.B) {
			sink := testenv.Mail(b, smtpsink.Options{})
			s := newSigned(b, sink)
			writeFile(b, s.dir, "100k.bin", make([]byte, 100_000))
			cfg := config(sink)
			cfg.Connections = 8
			change(&cfg)
			h := deliverytest.Open(b, New, cfg, handlers.WithBaseDir(s.dir))
			b.SetParallelism(8 / runtime.GOMAXPROCS(0))
			var failed atomic.Value
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := h.Deliver(b.Context(), event(ada)); err != nil {
						failed.Store(err)
					}
				}
			})
			if err := failed.Load(); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "mails/s")
		})
	}
}
