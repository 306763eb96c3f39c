package handlers

// TLS names the authorities to trust and the certificate to present. The zero value
// trusts the authorities of the system and presents no certificate.
type TLS struct {
	// CAFile is a file of PEM certificates to trust in place of the system's.
	CAFile string `json:"ca_file,omitempty" yaml:"ca_file,omitempty" jsonschema_description:"PEM certificates to trust, relative to the configuration file." kind:"path" unset:"the system's certificates"`
	// CertFile and KeyFile are the PEM files of the certificate to present and of
	// its key. Set both or neither.
	CertFile string `json:"cert_file,omitempty" yaml:"cert_file,omitempty" jsonschema_description:"PEM certificate to present to the server, for servers that require one; with 'key_file'." kind:"path"`
	KeyFile  string `json:"key_file,omitempty" yaml:"key_file,omitempty" jsonschema_description:"PEM key that belongs to 'cert_file'." kind:"path"`
	// ServerName is the name in the server's certificate; the default is the
	// host that is connected to.
	ServerName string `json:"server_name,omitempty" yaml:"server_name,omitempty" jsonschema_description:"Name in the server's certificate." unset:"the host connected to"`
}
