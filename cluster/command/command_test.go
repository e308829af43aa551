package command_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/codec"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
)

var at = time.Date(2026, 3, 1, 12, 0, 0, 123, time.UTC)

// commands has one of each kind, with every field set. In this order a ledger accepts them all.
func commands() []command.Command {
	volume := claim.VolumeRef{Namespace: "default", ID: "mysql"}
	workload := claim.WorkloadRef{Namespace: "default", ID: "db-1"}
	token := claim.Token{
		ID: "11111111-2222-4333-8444-555555555555", Accessor: "66666666-2222-4333-8444-555555555555",
		Workload: workload, Node: "a", Service: "web", Consul: "default", ExpiresAt: at,
	}
	key := claim.SigningKey{ID: "k", Public: []byte("{}"), Sealed: []byte{0, 1, 255}, SecretsKey: "k"}
	next := key
	next.ID = "k2"
	hash := strings.Repeat("0a", 32)
	all := []command.Command{
		&command.RegisterVolume{Volume: claim.Volume{
			Definition: claim.Definition{
				VolumeRef: volume, Name: "MySQL", PluginID: "hostpath", ExternalID: "x",
				Capabilities: []claim.Capability{{AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem}},
				MountOptions: claim.MountOptions{FSType: "ext4", Flags: []string{"noatime"}},
				Topology:     claim.TopologyRequest{Required: []claim.Topology{{Segments: map[string]string{"rack": "R1"}}}},
				Parameters:   map[string]string{"a": "b"},
			},
			SealedSecrets: []byte{0, 1, 255},
		}},
		&command.PutSecretsKey{ID: "k", Active: true, Gone: true},
		&command.ResealVolume{Ref: volume, IfModifyIndex: 1, SealedSecrets: []byte{0, 255}, KeyID: "k"},
		&command.PutNode{Node: claim.Node{Name: "a", Drivers: map[string]claim.NodeDriver{
			"hostpath": {ID: "hostpath", Type: claim.Monolith, Node: &claim.NodeCapabilities{StageUnstage: true}, UpdatedAt: at},
		}}},
		&command.AwaitWorkload{Ref: workload, Node: "a", After: []claim.WorkloadRef{{Namespace: "default", ID: "db-0"}}},
		&command.StartWorkload{
			Ref: workload, Node: "a", RunID: "run", Tokens: []claim.Token{token},
			Claims: []claim.Claim{{
				Volume: volume, Workload: workload, Mode: claim.Read,
				AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem,
			}},
		},
		&command.IntendAttach{Volume: volume, Workload: workload, Index: 6},
		&command.PutToken{Token: token},
		&command.DeleteTokens{IDs: []string{token.ID}},
		&command.EndWorkload{Ref: workload, Node: "a", RunID: "run"},
		&command.AdvanceClaims{
			By:    "root",
			Items: []command.Advance{{Volume: volume, Workload: workload, Index: 7, To: claim.Freed}},
		},
		&command.DeleteWorkloads{EndedBefore: at},
		&command.PutSnapshot{Snapshot: claim.Snapshot{
			SnapshotRef: claim.SnapshotRef{Namespace: "default", Name: "before"}, PluginID: "hostpath", ID: "snap-1",
			Volume: "mysql", ExternalVolumeID: "x", CreatedAt: at,
		}},
		&command.DeleteSnapshot{PluginID: "hostpath", ID: "snap-1"},
		&command.DeregisterVolume{Ref: volume, Force: true},
		&command.SetNodeStatus{Name: "a", Status: claim.NodeDown, By: "root", Continues: 7, After: "x"},
		&command.SetNodeDuty{
			Name: "a", Ineligible: new(bool), Drain: &claim.Drain{StartedAt: at, By: "root", DoneAt: at},
			StopDrain: true,
		},
		&command.DeleteNode{Name: "a"},
		&command.DeleteDrivers{IDs: []string{"x"}, IfUnusedBefore: at},
		&command.Identify{Cluster: claim.Cluster{ID: "c"}},
		&command.PutSigningKey{Key: key},
		&command.RotateSigningKey{Next: next},
		&command.AdvanceKeyRotation{Key: "k2", Phase: claim.KeyPublished},
		&command.PutLiveness{Liveness: claim.Liveness{HeartbeatTTL: 1, StopAfter: 2, Margin: 3}},
		&command.SetAutopilot{
			Change: claim.AutopilotChange{
				CleanupDeadServers: new(bool), LastContactThreshold: new(time.Second),
				ServerStabilizationTime: new(time.Second), MinQuorum: new(int),
			},
			First: claim.DefaultAutopilot(),
		},
		&command.BootstrapACL{
			Token:      acl.Token{Accessor: "a", SecretHash: hash, Type: acl.Management, CreatedAt: at},
			ResetIndex: 7,
		},
		&command.PutACLPolicies{Policies: []acl.Policy{{Name: "p", Description: "d", Rules: "node {}"}}},
		&command.PutACLRoles{Roles: []acl.Role{{Name: "r", Policies: []string{"p"}}}},
		&command.PutACLTokens{Tokens: []acl.Token{{
			Accessor: "b", SecretHash: hash[2:] + "0b", Type: acl.Client, Policies: []string{"p"},
			ExpiresAt: at.Add(time.Hour),
		}}},
		&command.ExpireACLTokens{},
		&command.DeleteACLTokens{Accessors: []string{"b"}},
		&command.DeleteACLRoles{Names: []string{"r"}},
		&command.DeleteACLPolicies{Names: []string{"p"}},
		&command.TakeMark{Mark: claim.Mark{Act: claim.Restoring, By: "root", CapacityMin: 1, CapacityMax: 2}},
		&command.EndMark{Index: 7},
	}
	for _, c := range all {
		command.SetAt(c, at)
	}
	return all
}

func TestRoundTrip(t *testing.T) {
	all := commands()
	if kinds, _ := command.Kinds(); len(all) != kinds {
		t.Errorf("%d kinds of commands are tested of %d", len(all), kinds)
	}
	for _, c := range all {
		command.SetKey(c, "k")
		entry, err := command.Encode(c)
		check.NoError(t, err)
		got, err := command.DecodeAsSent(entry)
		if err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("%T: got %+v, %v, want %+v", c, got, err, c)
		}
	}
}

// TestFingerprint: a command has the same fingerprint regardless of its time stamp, and before and after
// decoding. Different commands have different fingerprints.
func TestFingerprint(t *testing.T) {
	seen := map[string]command.Command{}
	for _, c := range commands() {
		command.SetKey(c, "k")
		var first []byte
		for _, stamp := range []time.Time{at, at.Add(time.Hour), {}} {
			command.SetAt(c, stamp)
			entry, err := command.Encode(c)
			check.NoError(t, err)
			read, err := command.Decode(entry)
			check.NoError(t, err)
			for _, c := range []command.Command{c, read} {
				got, err := command.Fingerprint(c)
				if err != nil || first != nil && !bytes.Equal(got, first) {
					t.Errorf("%T at %s: got %x, %v, not %x", c, stamp, got, err, first)
				}
				first = got
			}
		}
		if other := seen[string(first)]; other != nil {
			t.Errorf("%T has the same fingerprint as %T", c, other)
		}
		seen[string(first)] = c
	}
}

// fields are encoded fields of a command, a query or a reply.
type fields map[string]any

func (f fields) encode(t *testing.T) string {
	t.Helper()
	data, err := codec.Marshal(f)
	check.NoError(t, err)
	return string(data)
}

func TestEntriesThatAreNone(t *testing.T) {
	const stamp = "\x00\x00\x00\x00\x00\x00\x00\x00"
	none := fields{}.encode(t)
	for entry, want := range map[string]error{
		"":                               command.ErrMalformed,
		"\x01":                           command.ErrMalformed,
		"\x00\x01" + stamp + none:        command.ErrMalformed,
		"\x01\x00" + stamp + none:        command.ErrMalformed,
		"\x01\x04" + stamp:               command.ErrMalformed,
		"\x01\x04" + stamp + none + none: command.ErrMalformed,
		"\x01\x04" + stamp + fields{"unknown": 1}.encode(t): command.ErrMalformed,
		"\x01\x04" + stamp + fields{"ref": 7}.encode(t):     command.ErrMalformed,
		"\x01\xff" + stamp + none:                           command.ErrUnknownCommand,
		"\x01\x7f" + stamp + "anything":                     command.ErrUnknownCommand,
		// Whatever the next level's entries are.
		string(rune(command.Level + 1)): command.ErrUnknownCommand,
	} {
		if c, err := command.Decode([]byte(entry)); !errors.Is(err, want) {
			t.Errorf("%q: got %+v, %v, want %v", entry, c, err, want)
		}
	}
}

func TestTooLarge(t *testing.T) {
	c := &command.RegisterVolume{Volume: claim.Volume{Definition: claim.Definition{
		Context: map[string]string{"a": strings.Repeat("x",
			command.MaxSize)},
	}}}
	if _, err := command.Encode(c); !errors.Is(err, command.ErrTooLarge) {
		t.Errorf("got %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, c := range commands() {
		entry, err := command.Encode(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(entry)
	}
	f.Add([]byte("\x02\x01"))
	f.Fuzz(func(t *testing.T, entry []byte) {
		c, err := command.Decode(entry)
		if err != nil {
			if !errors.Is(err, command.ErrMalformed) && !errors.Is(err, command.ErrUnknownCommand) {
				t.Fatalf("the error is %v", err)
			}
			return
		}
		again, err := command.Encode(c)
		if errors.Is(err, command.ErrTooLarge) {
			return
		}
		if err != nil {
			t.Fatalf("a decoded command cannot be encoded: %v", err)
		}
		if _, err := command.Decode(again); err != nil {
			t.Fatalf("an encoded command cannot be decoded: %v", err)
		}
	})
}
