package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
)

func at(call, returned int64, one operation) operation {
	one.Call = call
	if one.Outcome != "unknown" {
		one.Return = &returned
	}
	return one
}

func reads(token int64, value, outcome string) operation {
	return operation{Op: "read", Token: token, Value: value, Outcome: outcome}
}

func writes(token int64, from, value, outcome string) operation {
	return operation{Op: "write", Token: token, From: from, Value: value, Outcome: outcome}
}

func TestHistories(t *testing.T) {
	first := []operation{at(0, 1, reads(7, "", "accepted")), at(2, 3, writes(7, "", "a", "accepted"))}
	for name, one := range map[string]struct {
		more []operation
		want bool
	}{
		"two holders one after another": {[]operation{
			at(4, 5, reads(8, "a", "accepted")), at(6, 7, writes(8, "a", "b", "accepted"))}, true},
		"a late write is refused": {[]operation{
			at(4, 5, reads(8, "a", "accepted")), at(6, 7, writes(7, "a", "b", "refused"))}, true},
		"a late write is accepted": {[]operation{
			at(4, 5, reads(8, "a", "accepted")), at(6, 7, writes(7, "a", "b", "accepted"))}, false},
		"a late write is accepted while another operation is under way": {[]operation{
			at(4, 9, reads(8, "b", "accepted")), at(6, 7, writes(7, "a", "b", "accepted"))}, true},
		"a write without a reason to refuse it": {[]operation{
			at(4, 5, writes(7, "a", "b", "refused"))}, false},
		"another holder's write is lost": {[]operation{
			at(4, 5, reads(8, "a", "accepted")), at(6, 7, reads(9, "a", "accepted")),
			at(8, 9, writes(9, "a", "b", "accepted")), at(10, 11, writes(9, "a", "c", "accepted"))}, false},
		"two holders have one token": {[]operation{
			at(4, 5, reads(8, "a", "accepted")), at(6, 7, reads(8, "a", "accepted")),
			at(8, 9, writes(8, "a", "b", "accepted")), at(8, 9, writes(8, "a", "c", "accepted"))}, false},
		"a write of unknown outcome took effect": {[]operation{
			at(4, 0, writes(7, "a", "b", "unknown")), at(6, 7, reads(8, "b", "accepted"))}, true},
		"a write of unknown outcome took effect later": {[]operation{
			at(4, 0, writes(7, "a", "b", "unknown")), at(6, 7, reads(7, "a", "accepted")), at(8, 9, reads(8, "b", "accepted"))}, true},
		"a write of unknown outcome was lost": {[]operation{
			at(4, 0, writes(7, "a", "b", "unknown")), at(6, 7, reads(8, "a", "accepted")), at(8, 9, writes(8, "a", "c", "accepted"))}, true},
		"a write of unknown outcome took effect after a higher token": {[]operation{
			at(4, 0, writes(7, "a", "b", "unknown")), at(6, 7, reads(8, "a", "accepted")), at(8, 9, reads(8, "b", "accepted"))}, false},
		"a read of unknown outcome fences": {[]operation{
			at(4, 0, reads(8, "", "unknown")), at(6, 7, writes(7, "a", "b", "refused"))}, true},
		"a stale read": {[]operation{at(4, 5, reads(8, "", "accepted"))}, false},
	} {
		t.Run(name, func(t *testing.T) {
			all := append(history{}, first...)
			all = append(all, one.more...)
			if got := porcupine.CheckOperations(model, all.operations()); got != one.want {
				t.Errorf("linearizable: %v, want %v", got, one.want)
			}
		})
	}
}

func TestBadLinesNameTheirField(t *testing.T) {
	good := `{"client":0,"call":1,"return":2,"op":"read","token":1,"value":"","from":"","outcome":"accepted"}`
	for change, want := range map[string]string{
		`"op":"read"/"op":"add"`:                   `op is "add"`,
		`"token":1/"token":0`:                      "token is 0",
		`"outcome":"accepted"/"outcome":"unknown"`: "has no return",
		`"outcome":"accepted"/"outcome":"perhaps"`: `outcome is "perhaps"`,
		`"return":2/"return":0`:                    "return is 0",
		`"client":0/"client":-1`:                   "client is -1",
		`"from":""/"form":""`:                      `unknown field "form"`,
		`"call":1/"call":"soon"`:                   "call",
	} {
		old, replacement, _ := strings.Cut(change, "/")
		file := filepath.Join(t.TempDir(), "history")
		if err := os.WriteFile(file, []byte(good+"\n"+strings.Replace(good, old, replacement, 1)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := readHistory(file)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: %v, want %q in line 2", change, err, want)
		}
	}
}
