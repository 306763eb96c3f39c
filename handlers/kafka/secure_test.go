package kafka

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/privateserver/kafkaserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// unsigned returns a token that the broker of the test takes: without a signature.
func unsigned(subject string) string {
	shard := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	now := time.Now().Unix()
	return shard(`{"alg":"none"}`) + "." + shard(fmt.Sprintf(`{"sub":%q,"iat":%d,"exp":%d}`, subject, now, now+3600)) + "."
}

// TestSecured has one broker with TLS, SASL and ACLs, and clients that lack one
// thing or the other. Nothing that went wrong may tell a secret.
func TestSecured(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const password = "s3cret w0rd"
	own, other := testenv.Certificate(t), testenv.Certificate(t)
	s := testenv.OwnKafka(t, kafkaserver.Config{
		Secure: kafkaserver.Secure{Users: map[string]string{"ann": password, "bob": password}, KeyStore: own.Both},
		Properties: map[string]string{
			"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			"super.users":           "User:ANONYMOUS",
		},
	})
	plain := []string{s.Addr()}
	newNamed := func(name string) { testenv.KafkaTopic(t, plain, name, 1, nil) }
	newNamed("t")
	allow(t, plain, "ann", "t")
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte(unsigned("ann")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	trusting := &handlers.TLS{CAFile: own.Cert}
	tokens := authorizationServer(t, "ann", password, "write", unsigned("ann"))
	ann := func(mechanism string) *SASL {
		return &SASL{Mechanism: mechanism, Username: "ann", Password: handlers.NewSecret(password)}
	}
	with := func(s *SASL, change func(*SASL)) *SASL { change(s); return s }
	for name, c := range map[string]struct {
		tls  *handlers.TLS
		sasl *SASL
		want string
		says []string
	}{
		"plain":                 {trusting, ann(SASLPlain), "delivered", nil},
		"scram-sha-256":         {trusting, ann(SASLSCRAM256), "delivered", nil},
		"scram-sha-512":         {trusting, ann(SASLSCRAM512), "delivered", nil},
		"token":                 {trusting, &SASL{Mechanism: SASLOAuthBearer, Token: handlers.NewSecret(unsigned("ann"))}, "delivered", nil},
		"token file":            {trusting, &SASL{Mechanism: SASLOAuthBearer, TokenFile: tokenFile}, "delivered", nil},
		"token command":         {trusting, &SASL{Mechanism: SASLOAuthBearer, TokenCommand: []string{"cat", tokenFile}}, "delivered", nil},
		"no token command":      {trusting, &SASL{Mechanism: SASLOAuthBearer, TokenCommand: []string{"cat", tokenFile + "x"}}, "unavailable", []string{"sasl.token_command: run cat: exit status 1"}},
		"client credentials":    {trusting, &SASL{Mechanism: SASLOAuthBearer, OAuth: &OAuth{TokenURL: tokens, ClientID: "ann", ClientSecret: handlers.NewSecret(password), Scopes: []string{"write"}}}, "delivered", nil},
		"refused credentials":   {trusting, &SASL{Mechanism: SASLOAuthBearer, OAuth: &OAuth{TokenURL: tokens, ClientID: "ann", ClientSecret: handlers.NewSecret("wr0ng w0rd")}}, "unavailable", []string{"sasl.oauth: 401 Unauthorized: invalid_client (check client_id"}},
		"no token file":         {trusting, &SASL{Mechanism: SASLOAuthBearer, TokenFile: tokenFile + "x"}, "unavailable", []string{"sasl.token_file"}},
		"wrong token":           {trusting, &SASL{Mechanism: SASLOAuthBearer, Token: handlers.NewSecret("s3cret w0rd")}, "unavailable", []string{"check sasl"}},
		"wrong password":        {trusting, with(ann(SASLSCRAM256), func(s *SASL) { s.Password = handlers.NewSecret("s3cret w0rd?") }), "unavailable", []string{"check sasl"}},
		"wrong plain password":  {trusting, with(ann(SASLPlain), func(s *SASL) { s.Password = handlers.NewSecret("s3cret w0rd?") }), "unavailable", []string{"check sasl"}},
		"nobody":                {trusting, nil, "unavailable", []string{"SASL"}},
		"no TLS":                {nil, ann(SASLSCRAM256), "unavailable", []string{"TLS"}},
		"another authority":     {&handlers.TLS{CAFile: other.Cert}, ann(SASLSCRAM256), "unavailable", []string{"tls.ca_file"}},
		"another name":          {&handlers.TLS{CAFile: own.Cert, ServerName: "example.com"}, ann(SASLSCRAM256), "unavailable", []string{"tls.server_name"}},
		"may not write, exists": {trusting, with(ann(SASLSCRAM256), func(s *SASL) { s.Username = "bob" }), "unavailable", []string{"TOPIC_AUTHORIZATION_FAILED", "allow WRITE"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := open(t, []string{s.SecureAddr()}, func(cfg *Config) { cfg.TLS, cfg.SASL = c.tls, c.sasl })
			err := h.Deliver(t.Context(), events(1)[0])
			deliverytest.WantClass(t, err, c.want)
			deliverytest.WantText(t, err, c.says...)
			for e := err; e != nil; e = unwrap(e) {
				if text := fmt.Sprintf("%v %+v %#v", e, e, e); strings.Contains(text, "s3cret") {
					t.Errorf("the password is in %s", text)
				}
			}
		})
	}
	t.Run("allowed later", func(t *testing.T) {
		t.Parallel()
		newNamed("later")
		h := open(t, []string{s.SecureAddr()}, to("later"), func(cfg *Config) { cfg.TLS, cfg.SASL = trusting, ann(SASLSCRAM256) })
		deliverytest.WantClass(t, h.Deliver(t.Context(), events(1)[0]), "unavailable")
		allow(t, plain, "ann", "later")
		settle(t, h, events(1)[0], "unavailable") // the broker hears of it from its controller
	})
	t.Run("transactions are not allowed", func(t *testing.T) {
		t.Parallel()
		h := open(t, []string{s.SecureAddr()}, func(cfg *Config) { cfg.TLS, cfg.SASL, cfg.Transactional = trusting, ann(SASLSCRAM256), true })
		err := h.Deliver(t.Context(), events(1)[0])
		deliverytest.WantClass(t, err, "unavailable")
		deliverytest.WantText(t, err, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "transactional_id")
	})
}

func unwrap(err error) error {
	u, ok := err.(interface{ Unwrap() error })
	if !ok {
		return nil
	}
	return u.Unwrap()
}

// allow lets a user write a topic.
func allow(t *testing.T, brokers []string, user, topic string) {
	t.Helper()
	b := kadm.NewACLs().Allow("User:"+user).AllowHosts().Topics(topic).ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpWrite, kadm.OpDescribe)
	results, err := admin(t, brokers).CreateACLs(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
}

// TestClientCertificate needs no SASL: the certificate is the identity.
func TestClientCertificate(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	own := testenv.Certificate(t)
	s := testenv.OwnKafka(t, kafkaserver.Config{Secure: kafkaserver.Secure{KeyStore: own.Both, TrustStore: own.Cert}})
	testenv.KafkaTopic(t, []string{s.Addr()}, "t", 1, nil)
	conf := handlers.TLS{CAFile: own.Cert, CertFile: own.Cert, KeyFile: own.Key}
	deliverytest.Deliver(t, open(t, []string{s.SecureAddr()}, func(cfg *Config) { cfg.TLS = &conf }), events(1))
	err := open(t, []string{s.SecureAddr()}, func(cfg *Config) { cfg.TLS = &handlers.TLS{CAFile: own.Cert} }).Deliver(t.Context(), events(1)[0])
	deliverytest.WantClass(t, err, "unavailable")
	deliverytest.WantText(t, err, "tls")
}
