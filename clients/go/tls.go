package sidekeeper

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	// CAVariable is the environment variable that names the file with the authorities of sidecars' certificates, in PEM. It is
	// read when a connection is made for the first time.
	CAVariable = "SIDEKEEPER_CA"
	// CertVariable is the environment variable that names the file with the application's certificate and its chain, in PEM. It
	// is read again for each attempt to connect, and so is the key.
	CertVariable = "SIDEKEEPER_CERT"
	// KeyVariable is the environment variable that names the file with the key of the certificate, in PEM.
	KeyVariable = "SIDEKEEPER_KEY"
)

// hasTLS says whether connections to an endpoint are encrypted.
func hasTLS(endpoint string) bool {
	return strings.HasPrefix(endpoint, "https://")
}

// transportCredentials returns how connections to an endpoint are encrypted.
func transportCredentials(endpoint string) (credentials.TransportCredentials, error) {
	if !hasTLS(endpoint) {
		return insecure.NewCredentials(), nil
	}
	for _, variable := range []string{CAVariable, CertVariable, KeyVariable} {
		if os.Getenv(variable) == "" {
			return nil, fmt.Errorf("endpoint %q: https:// needs the files in %s, %s and %s of the environment, and %s is not set",
				endpoint, CAVariable, CertVariable, KeyVariable, variable)
		}
	}
	file, cert, key := os.Getenv(CAVariable), os.Getenv(CertVariable), os.Getenv(KeyVariable)
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", CAVariable, err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: %s has no certificate in PEM", CAVariable, file)
	}
	// A mistake is told at once rather than at each attempt to connect.
	if _, err = tls.LoadX509KeyPair(cert, key); err != nil {
		return nil, fmt.Errorf("%s and %s: %w", CertVariable, KeyVariable, err)
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12,
		RootCAs:    authorities,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cert, key)
			if err != nil {
				return nil, fmt.Errorf("%s and %s: %w", CertVariable, KeyVariable, err)
			}
			return &pair, nil
		},
	}), nil
}
