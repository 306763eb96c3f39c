package privateserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
)

// MQTT describes a broker that lets everyone in. conf has further lines of its configuration, which may say otherwise.
func MQTT(conf string) Program {
	const name = "mosquitto" //nolint:misspell // of the broker
	return Program{
		Name: name,
		Command: command(name, "on Debian, apt-get install "+name+"; on macOS, brew install "+name, func(s *Server) ([]string, error) {
			path, err := s.WriteFile("mqtt.conf", fmt.Appendf(nil, "user root\nlistener %d 127.0.0.1\nallow_anonymous true\n%s\n", s.Port(), conf))
			return []string{"-c", path}, err
		}),
		Ask: askMQTT,
	}
}

// askMQTT asks for a connection with MQTT 5. A broker that requires a login refuses it, and is ready as well. A broker with
// TLS ends the connection.
func askMQTT(ctx context.Context, s *Server) error {
	const connect = "\x10\x0e\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x01x"
	const connack = 0x20
	answer, err := talk(ctx, s.Addr(), connect)
	isEnded := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
	if bytes.HasPrefix(answer, []byte{connack}) || isEnded {
		return nil
	}
	return errors.Join(err, fmt.Errorf("the server answers %q", answer))
}
