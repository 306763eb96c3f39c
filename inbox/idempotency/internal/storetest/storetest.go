// Package storetest is the suite that every store of idempotency keys passes.
package storetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/inbox/idempotency"
)

const (
	// long is a time that does not run out during a test.
	long = time.Hour
	// short is a time that does, and patience bounds the wait for it.
	short    = 5 * time.Millisecond
	patience = 2 * time.Minute
)

// Run tests a store, which may be shared: each run uses new keys.
func Run(t *testing.T, s idempotency.Store) {
	t.Helper()

	for name, test := range map[string]func(*testing.T, idempotency.Store){
		"taken, in progress, done": testStates,
		"asked again":              testRepeated,
		"renewed":                  testRenewed,
		"released":                 testReleased,
		"a late owner":             testLate,
		"an owner without rival":   testUnrivalled,
		"an answer runs out":       testKept,
		"any bytes":                testBytes,
		"many at once":             testMany,
		"a context that is over":   testContext,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// claims returns n claims of one new key, each for a separate request.
func claims(n int) []idempotency.Claim {
	all := make([]idempotency.Claim, n)
	key := hash(rand.Text())
	for i := range all {
		all[i] = idempotency.Claim{Key: key, Token: rand.Text(), Fingerprint: hash(rand.Text())}
	}
	return all
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// begin checks the state of a key, and the fields that belong to it.
func begin(t *testing.T, s idempotency.Store, c idempotency.Claim, lease time.Duration, want idempotency.Entry) {
	t.Helper()

	got, err := s.Begin(t.Context(), c, lease)
	if err != nil {
		t.Fatalf("Begin: %v", err)
	}

	if want.State == idempotency.Taken {
		got.Fingerprint = ""
		got.Answer = nil // not needed
	}

	if got.State != want.State || got.Fingerprint != want.Fingerprint || !bytes.Equal(got.Answer, want.Answer) {
		t.Fatalf("Begin found %v, %.8s, %.20q: want %v, %.8s, %.20q",
			got.State, got.Fingerprint, got.Answer, want.State, want.Fingerprint, want.Answer)
	}
}

func settle(t *testing.T, s idempotency.Store, c idempotency.Claim, change idempotency.Change, want error) {
	t.Helper()
	if err := s.Settle(t.Context(), c, change); !errors.Is(err, want) {
		t.Fatalf("Settle with action %d: %v, want %v", change.Action, err, want)
	}
}

var taken = idempotency.Entry{State: idempotency.Taken} //nolint:gochecknoglobals // a constant that Go has no form for

func inProgress(by idempotency.Claim) idempotency.Entry {
	return idempotency.Entry{State: idempotency.InProgress, Fingerprint: by.Fingerprint}
}

func done(by idempotency.Claim, answer string) idempotency.Entry {
	return idempotency.Entry{State: idempotency.Done, Fingerprint: by.Fingerprint, Answer: []byte(answer)}
}

func renew(d time.Duration) idempotency.Change {
	return idempotency.Change{Action: idempotency.Renew, For: d}
}

func release() idempotency.Change { return idempotency.Change{Action: idempotency.Release} }

func finish(answer string, keep time.Duration) idempotency.Change {
	return idempotency.Change{Action: idempotency.Finish, For: keep, Answer: []byte(answer)}
}

// takeOver takes the key of a lease that expires.
func takeOver(t *testing.T, s idempotency.Store, c idempotency.Claim) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		e, err := s.Begin(t.Context(), c, long)
		if err != nil {
			t.Fatalf("Begin: %v", err)
		}

		if e.State == idempotency.Taken {
			return
		}

		if time.Now().After(end) {
			t.Fatalf("a lease of %s has lasted %s", short, patience)
		}
	}
}

func testStates(t *testing.T, s idempotency.Store) {
	t.Helper()
	c := claims(3)
	other := claims(1)[0]
	begin(t, s, c[0], long, taken)
	begin(t, s, c[1], long, inProgress(c[0]))
	begin(t, s, other, long, taken)
	settle(t, s, c[0], finish("one", long), nil)
	begin(t, s, c[1], long, done(c[0], "one"))
	begin(t, s, c[2], long, done(c[0], "one"))
	begin(t, s, c[0], long, done(c[0], "one"))
	begin(t, s, claims(1)[0], long, taken)
}

// testRepeated: a call whose answer was lost is repeated.
func testRepeated(t *testing.T, s idempotency.Store) {
	t.Helper()
	c := claims(2)

	begin(t, s, c[0], long, taken)
	begin(t, s, c[0], long, taken)
	begin(t, s, c[1], long, inProgress(c[0]))
	settle(t, s, c[0], finish("one", long), nil)
	settle(t, s, c[0], finish("one", long), nil)
	begin(t, s, c[1], long, done(c[0], "one"))

	r := claims(2)
	begin(t, s, r[0], long, taken)
	settle(t, s, r[0], release(), nil)
	settle(t, s, r[0], release(), nil)
	begin(t, s, r[1], long, taken)
}

func testRenewed(t *testing.T, s idempotency.Store) {
	t.Helper()
	c := claims(3)
	begin(t, s, c[0], long, taken)
	settle(t, s, c[0], renew(long), nil)
	settle(t, s, c[1], renew(long), idempotency.ErrLost)
	settle(t, s, c[0], renew(short), nil) // a lease can be made shorter
	takeOver(t, s, c[1])
	settle(t, s, c[0], renew(long), idempotency.ErrLost)
	settle(t, s, c[1], finish("one", long), nil)
	settle(t, s, c[1], renew(long), idempotency.ErrLost)
	settle(t, s, claims(1)[0], renew(long), idempotency.ErrLost)
}

func testReleased(t *testing.T, s idempotency.Store) {
	t.Helper()
	c := claims(3)
	begin(t, s, c[0], long, taken)
	settle(t, s, c[1], release(), idempotency.ErrLost)
	begin(t, s, c[1], long, inProgress(c[0]))
	settle(t, s, c[0], release(), nil)
	begin(t, s, c[1], long, taken)
	settle(t, s, c[0], release(), idempotency.ErrLost)
	settle(t, s, c[1], finish("one", long), nil)
	settle(t, s, c[1], release(), idempotency.ErrLost)
	begin(t, s, c[2], long, done(c[1], "one"))
}

// testLate: an owner whose lease has expired cannot affect the next one.
func testLate(t *testing.T, s idempotency.Store) {
	t.Helper()
	c := claims(3)
	begin(t, s, c[0], short, taken)
	takeOver(t, s, c[1])

	for _, change := range []idempotency.Change{renew(long), release(), finish("late", long)} {
		settle(t, s, c[0], change, idempotency.ErrLost)
	}

	begin(t, s, c[2], long, inProgress(c[1]))
	settle(t, s, c[1], finish("one", long), nil)
	for _, change := range []idempotency.Change{renew(long), release(), finish("late", long)} {
		settle(t, s, c[0], change, idempotency.ErrLost)
	}

	begin(t, s, c[2], long, done(c[1], "one"))
}

// testUnrivalled: a late answer is stored if no claim has the key.
func testUnrivalled(t *testing.T, s idempotency.Store) {
	t.Helper()
	c := claims(3)
	begin(t, s, c[0], short, taken)
	takeOver(t, s, c[1])
	settle(t, s, c[1], release(), nil)
	settle(t, s, c[0], finish("late", long), nil)
	begin(t, s, c[2], long, done(c[0], "late"))
}

func testKept(t *testing.T, s idempotency.Store) {
	t.Helper()
	c := claims(3)
	begin(t, s, c[0], long, taken)
	settle(t, s, c[0], finish("one", short), nil)
	takeOver(t, s, c[1])
	begin(t, s, c[2], long, inProgress(c[1]))
}

func testBytes(t *testing.T, s idempotency.Store) {
	t.Helper()
	every := make([]byte, 1<<20)
	for i := range every {
		every[i] = byte(i)
	}

	for _, answer := range []string{"", "\x00", "\xff\r\n", string(every)} {
		c := claims(2)
		begin(t, s, c[0], long, taken)
		settle(t, s, c[0], finish(answer, long), nil)
		begin(t, s, c[1], long, done(c[0], answer))
	}

	c := claims(2)
	begin(t, s, c[0], long, taken)
	settle(t, s, c[0], idempotency.Change{Action: idempotency.Finish, For: long}, nil)
	begin(t, s, c[1], long, done(c[0], ""))
}

// testMany: of many concurrent claims one gets the key, also after it has expired.
func testMany(t *testing.T, s idempotency.Store) {
	t.Helper()
	const rounds, rivals = 20, 16
	for range rounds {
		c := claims(rivals + 1)
		begin(t, s, c[rivals], short, taken)

		var mu sync.Mutex
		var owners []idempotency.Claim
		var wg sync.WaitGroup
		for _, rival := range c[:rivals] {
			wg.Go(func() {
				for end := time.Now().Add(patience); time.Now().Before(end); {
					e, err := s.Begin(t.Context(), rival, long)
					if err != nil {
						t.Errorf("Begin: %v", err)
						return
					}
					if e.State == idempotency.Taken {
						mu.Lock()
						owners = append(owners, rival)
						mu.Unlock()
					}

					if e.State == idempotency.Taken || e.Fingerprint != c[rivals].Fingerprint {
						return
					}
				}
			})
		}

		wg.Wait()
		if len(owners) != 1 {
			t.Fatalf("%d of %d have the key", len(owners), rivals)
		}
		settle(t, s, owners[0], finish("one", long), nil)
	}
}

func testContext(t *testing.T, s idempotency.Store) {
	t.Helper()
	if _, local := s.(*idempotency.Memory); local {
		t.Skip("it calls no server")
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := claims(1)[0]

	if _, err := s.Begin(ctx, c, long); !errors.Is(err, context.Canceled) {
		t.Errorf("Begin: %v", err)
	}
	if err := s.Settle(ctx, c, finish("one", long)); !errors.Is(err, context.Canceled) {
		t.Errorf("Settle: %v", err)
	}
}
