package command_test

import (
	"encoding/hex"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/test/lib/check"
)

// golden has a log with an entry of each command, as they are in existing logs. A line is never changed.
const golden = "testdata/entries.txt"

// TestGoldenEntries: the entries of existing logs are decoded, applied, and encoded to the same bytes.
func TestGoldenEntries(t *testing.T) {
	file, err := os.ReadFile(golden)
	check.NoError(t, err)
	ledger, err := state.Open(t.TempDir(), nil)
	check.NoError(t, err)
	defer func() { check.NoError(t, ledger.Close()) }()
	known := map[string]bool{}
	for i, line := range strings.Split(strings.TrimSpace(string(file)), "\n") {
		name, text, _ := strings.Cut(line, " ")
		known[name] = true
		entry, err := hex.DecodeString(text)
		check.NoError(t, err)
		c, err := command.DecodeAsSent(entry)
		if err != nil || nameOf(c) != name {
			t.Errorf("%s is decoded as %+v, %v", name, c, err)
			continue
		}
		if again, err := command.Encode(c); err != nil || string(again) != string(entry) {
			t.Errorf("%s is encoded as %x, %v, not as %s", name, again, err, text)
		}
		outcomes, err := ledger.Apply([]state.Entry{{Index: uint64(i + 1), Command: c}})
		if err != nil || outcomes[0].Err != nil {
			t.Errorf("%s is applied with %v, %v", name, outcomes, err)
		}
	}
	for _, c := range commands() {
		name := nameOf(c)
		if known[name] {
			continue
		}
		command.SetKey(c, name)
		entry, err := command.Encode(c)
		check.NoError(t, err)
		t.Errorf("%s has no entry of this command; add:\n%s %x", golden, name, entry)
	}
}

func nameOf(c command.Command) string { return reflect.TypeOf(c).Elem().Name() }
