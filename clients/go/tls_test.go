package sidekeeper

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestAnEndpointWithTLSNeedsItsFiles(t *testing.T) {
	const endpoint = "https://sidecar.internal:7443"
	folder := t.TempDir()
	for _, variable := range []string{CAVariable, CertVariable} {
		t.Setenv(variable, filepath.Join(folder, variable))
	}
	t.Setenv(KeyVariable, "")
	if _, err := transportCredentials(endpoint); err == nil || !strings.Contains(err.Error(), KeyVariable+" is not set") {
		t.Errorf("got %v", err)
	}
	t.Setenv(KeyVariable, filepath.Join(folder, KeyVariable))
	if _, err := transportCredentials(endpoint); err == nil || !strings.HasPrefix(err.Error(), CAVariable+": open ") {
		t.Errorf("got %v", err)
	}
	if _, err := transportCredentials("http://127.0.0.1:7070"); err != nil {
		t.Errorf("got %v", err)
	}
}
