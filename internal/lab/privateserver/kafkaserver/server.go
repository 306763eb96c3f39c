package kafkaserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

const (
	// nodeID is the id of the only node.
	nodeID = 1
	// propertiesFile is the configuration, in the directory of the server.
	propertiesFile = "server.properties"
)

// Config describes a server. The zero value is a small server without security.
type Config struct {
	// Programs to run; the zero value is the result of [Find].
	Programs Programs
	// Properties are further lines of server.properties, or replace the usual ones.
	Properties map[string]string
	// Secure opens a second listener for clients; see [Server.SecureAddr].
	Secure Secure
	// Tuned runs the server as in production, with the JVM's default compilers and
	// collector and a heap of 1 GiB. Otherwise it has 256 MiB, and starts faster.
	Tuned bool
}

// Secure describes the second listener. The first one stays open to every client, as
// User:ANONYMOUS.
type Secure struct {
	// Users are names and passwords, for PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.
	// OAUTHBEARER accepts any unsigned token. Nil is a listener without SASL.
	Users map[string]string
	// KeyStore is a PEM file with the key and the certificate chain of the server,
	// "" for a listener without TLS.
	KeyStore string
	// TrustStore is a PEM file with the authorities of clients' certificates, which are
	// then required. "" requires none.
	TrustStore string
	// Advertised is the address that the listener tells its clients, "" for its own.
	Advertised string
}

// protocol returns Kafka's name of the security protocol, "" for no second listener.
func (s Secure) protocol() string {
	switch {
	case s.Users != nil && s.KeyStore != "":
		return "SASL_SSL"
	case s.Users != nil:
		return "SASL_PLAINTEXT"
	case s.KeyStore != "":
		return "SSL"
	default:
		return ""
	}
}

// addTo adds the settings of the second listener.
func (s Secure) addTo(all map[string]string) {
	const of = "listener.name.secure." // Kafka requires lower case
	if s.Users != nil {
		var users strings.Builder
		for _, name := range slices.Sorted(maps.Keys(s.Users)) {
			fmt.Fprintf(&users, " user_%s=%q", name, s.Users[name])
		}

		all[of+"sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
		all[of+"plain.sasl.jaas.config"] = "org.apache.kafka.common.security.plain.PlainLoginModule required" + users.String() + ";"
		all[of+"scram-sha-256.sasl.jaas.config"] = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
		all[of+"scram-sha-512.sasl.jaas.config"] = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
		all[of+"oauthbearer.sasl.jaas.config"] = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required " +
			"unsecuredLoginStringClaim_sub=\"broker\";"
	}

	if s.KeyStore != "" {
		all[of+"ssl.keystore.type"] = "PEM"
		all[of+"ssl.keystore.location"] = s.KeyStore
	}

	if s.TrustStore != "" {
		all[of+"ssl.truststore.type"] = "PEM"
		all[of+"ssl.truststore.location"] = s.TrustStore
		all[of+"ssl.client.auth"] = "required"
	}
}

// Server is a running private Kafka.
type Server struct {
	*privateserver.Server

	cfg                Config
	cluster            string // id
	controller, secure int    // ports, fixed once Start has returned
}

// Start starts a new server in a temporary directory and returns once it serves its
// cluster of one node. ctx bounds the start, not the life of the server, which the
// caller ends by Stop.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Programs == (Programs{}) {
		found, err := Find()
		if err != nil {
			return nil, err
		}
		cfg.Programs = found
	}

	k := &Server{cfg: cfg, cluster: clusterID()}
	var err error
	k.Server, err = privateserver.Start(ctx, privateserver.Program{
		Name:      "Kafka",
		MorePorts: []*int{&k.controller, &k.secure},
		Create:    k.format,
		Command: func(s *privateserver.Server) (string, []string, error) {
			conf := filepath.Join(s.Dir(), propertiesFile)
			return cfg.Programs.Java, append(cfg.flags(), "-cp", cfg.Programs.classPath(), "kafka.Kafka", conf), nil
		},
		Ask: k.ask,
	})
	if err != nil {
		return nil, err
	}
	return k, nil
}

// flags of the JVM. The C1 compiler alone and the serial collector start in half the time
// and use a third of the memory.
func (c Config) flags() []string {
	if c.Tuned {
		return []string{"-Xms1g", "-Xmx1g"}
	}
	return []string{"-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}
}

// ask checks that the node serves the cluster of k: the port may belong to another
// server. A broker is listed once the controller lets it serve.
func (k *Server) ask(ctx context.Context, s *privateserver.Server) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Addr()), kgo.RequestRetries(0))
	if err != nil {
		return err
	}
	defer client.Close()

	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	resp, err := req.RequestWith(ctx, client)
	switch {
	case err != nil:
		return err
	case resp.ClusterID == nil || *resp.ClusterID != k.cluster:
		return errors.New("another cluster has the port")
	case len(resp.Brokers) != 1 || resp.Brokers[0].NodeID != nodeID:
		return errors.New("the broker does not serve yet")
	default:
		return nil
	}
}

// SecureAddr returns host and port of the listener of [Config.Secure]. Addr returns host and port of the open listener.
func (k *Server) SecureAddr() string { return privateserver.Local(k.secure) }

// classPath names all jars; java itself expands the star.
func (p Programs) classPath() string { return filepath.Join(p.Lib, "*") }
