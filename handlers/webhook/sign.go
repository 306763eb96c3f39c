package webhook

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
)

// The bytes that a secret may have:
// https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md.
const (
	minSecret    = 24
	maxSecret    = 64
	secretPrefix = "whsec_"
)

// maxIDPrefix keeps webhook-id short.
const maxIDPrefix = 64

// parseSecrets returns a signer for each secret. No error shows any part of one.
func parseSecrets(texts []handlers.Secret) ([]*standardwebhooks.Webhook, error) {
	var signers []*standardwebhooks.Webhook
	var errs []error
	seen := make(map[string]bool)
	for i, text := range texts {
		path := "signing_secrets." + strconv.Itoa(i)
		encoded, prefixed := strings.CutPrefix(text.Reveal(), secretPrefix)
		key, err := base64.StdEncoding.DecodeString(encoded)

		switch {
		case text.IsZero():
			errs = append(errs, field.Errorf(path, "is empty: write a secret such as ${env:WEBHOOK_SECRET}, or take it out"))
			continue
		case !prefixed || err != nil:
			errs = append(errs, field.Errorf(path, `must be whsec_ and base64: make one with: echo "whsec_$(openssl rand -base64 32)"`))
			continue
		case len(key) < minSecret || len(key) > maxSecret:
			errs = append(errs, field.Errorf(path, "must be of %d to %d bytes, not %d", minSecret, maxSecret, len(key)))
			continue
		case seen[string(key)]:
			errs = append(errs, field.Errorf(path, "is there twice: take one of them out"))
			continue
		}

		seen[string(key)] = true

		signer, err := standardwebhooks.NewWebhook(text.Reveal())
		if err != nil { // the library decodes the secret again, and its error may quote the secret
			errs = append(errs, field.Errorf(path, "is refused by the library that signs"))
			continue
		}

		signers = append(signers, signer)
	}

	return signers, errors.Join(errs...)
}

// sign returns the value of webhook-signature: a receiver takes a request if it
// knows any of the secrets.
func (h *Handler) sign(id string, now time.Time, body []byte) (string, error) {
	signatures := make([]string, len(h.signers))
	for i, signer := range h.signers {
		var err error
		signatures[i], err = signer.Sign(id, now, body)
		if err != nil {
			return "", err
		}
	}
	return strings.Join(signatures, " "), nil
}

// webhookID is the same for every attempt, so that receivers recognize a repeated request, and differs
// for a replay. The id contains the destination because two destinations may lead to one receiver. The
// signed parts are joined by dots, so the id must not contain a dot.
func webhookID(prefix string, e *delivery.Event) string {
	return idOf(prefix, e.DedupeID(), e.Destination)
}

// batchID is the webhook-id of a request with several events: the same as long as the request holds the same events in the
// same order. Its middle part is a hash of their ids, which are too many for a header.
func batchID(prefix, destination string, ids []string) string {
	const length = 16 // bytes: two requests with one id are out of the question
	sum := sha256.Sum256([]byte(strings.Join(ids, "\n")))
	return idOf(prefix, "batch-"+hex.EncodeToString(sum[:length]), destination)
}

func idOf(prefix, middle, destination string) string {
	id := make([]byte, 0, len(prefix)+len(middle)+len(destination)+8)
	id = append(id, prefix...)
	id = append(id, '-')
	id = append(id, middle...)
	id = append(id, '-')

	const hexDigits = "0123456789ABCDEF"

	for _, c := range []byte(cmp.Or(destination, "webhook")) {
		if plainInID(rune(c)) {
			id = append(id, c)
		} else {
			id = append(id, '%', hexDigits[c>>4], hexDigits[c&0xf])
		}
	}

	return string(id)
}

func plainInID(r rune) bool {
	isLetter := r|0x20 >= 'a' && r|0x20 <= 'z'
	isDigit := r >= '0' && r <= '9'
	isMark := r == '-' || r == '_'
	return isLetter || isDigit || isMark
}
