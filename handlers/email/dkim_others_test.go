//go:build testall

package email

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// verifier verifies each signature of a mail with dkimpy.
const verifier = `
import dkim, json, sys
zone, mail = json.load(open(sys.argv[1])), open(sys.argv[2], "rb").read()
lookup = lambda name, timeout=5: zone[name.decode().rstrip(".")].encode()
message = dkim.DKIM(mail)
print([message.verify(idx=i, dnsfunc=lookup) for i in range(2)])
`

// TestSignaturesOfOthers: a library that is not the signer's verifies both signatures.
func TestSignaturesOfOthers(t *testing.T) {
	t.Parallel()
	python, err := filepath.Abs("../../.cache/writers/python/bin/python")
	if err == nil {
		_, err = os.Stat(python)
	}
	testenv.Need(t, "python", err)

	sink := testenv.Mail(t, smtpsink.Options{})
	s := newSigned(t, sink)
	m, _ := deliverOne(t, deliverytest.Open(t, New, s.cfg, handlers.WithBaseDir(s.dir)), sink, event(withInvoice))
	zone, err := json.Marshal(s.zone)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, s.dir, "zone.json", zone)
	writeFile(t, s.dir, "mail.eml", m.Data)

	out, err := exec.CommandContext(t.Context(), python, "-c", verifier, filepath.Join(s.dir, "zone.json"), filepath.Join(s.dir, "mail.eml")).CombinedOutput()
	if err != nil || string(out) != "[True, True]\n" {
		t.Errorf("%v: %s\n%s", err, out, m.Data)
	}
}
