package command_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
)

// queries has one of each kind, with every field set, and an answer to it.
func queries() map[command.Query]any {
	volume := claim.VolumeRef{Namespace: "default", ID: "mysql"}
	workload := claim.WorkloadRef{Namespace: "default", ID: "db-1"}
	held := []claim.Claim{{Volume: volume, Workload: workload, Mode: claim.Read, State: claim.Taken, TakenAt: at}}
	running := claim.Workload{Ref: workload, Node: "a", Status: claim.Running, CreatedAt: at}
	all := map[command.Query]any{
		&command.QueryVolume{Ref: volume}: claim.Volume{
			Definition: claim.Definition{VolumeRef: volume, ExternalID: "x"},
		},
		&command.QueryWorkload{Ref: workload}:    running,
		&command.QueryClaims{Workload: workload}: held,
		&command.QueryNode{Name: "a"}:            claim.Node{Name: "a", Status: claim.NodeDown},
		&command.QueryOnNode{Node: "a"}: command.OnNode{
			Workloads: []claim.Workload{running},
			Claims:    held,
		},
		&command.QueryTokens{Node: "a"}:                       []claim.Token{{ID: "x", Workload: workload}},
		&command.QueryLeft{Of: []claim.WorkloadRef{workload}}: []claim.WorkloadRef{workload},
		&command.QueryACL{SecretHash: "00"}: acl.Granted{
			Token:    acl.Token{Accessor: "x"},
			Policies: []acl.Policy{{Name: "p"}},
		},
		&command.QueryCluster{}: claim.Cluster{ID: "c", CreatedAt: at},
	}
	for q := range all {
		q.Block(command.Blocking{MinIndex: 7, Wait: time.Minute})
	}
	return all
}

func TestQueriesAndAnswersTravel(t *testing.T) {
	all := queries()
	if _, kinds := command.Kinds(); len(all) != kinds {
		t.Errorf("%d kinds of queries are tested of %d", len(all), kinds)
	}
	for q, want := range all {
		data, err := command.EncodeQuery(q)
		check.NoError(t, err)
		got, err := command.DecodeQuery(data)
		if err != nil || !reflect.DeepEqual(got, q) || got.Blocks().MinIndex != 7 {
			t.Errorf("%T: got %+v, %v, want %+v", q, got, err, q)
		}
		data, err = command.EncodeAnswer(want, 8, nil)
		check.NoError(t, err)
		answer, index, err := command.DecodeAnswer(q, data)
		if err != nil || index != 8 || !reflect.DeepEqual(answer, want) {
			t.Errorf("%T: got %+v at %d, %v, want %+v", q, answer, index, err, want)
		}
	}
	data, err := command.EncodeAnswer(nil, 9, claim.ErrVolumeNotFound)
	check.NoError(t, err)
	if _, index, err := command.DecodeAnswer(&command.QueryVolume{}, data); index != 9 ||
		!errors.Is(err, claim.ErrVolumeNotFound) {
		t.Errorf("got %v at %d", err, index)
	}
}

func TestQueriesThatAreNone(t *testing.T) {
	none := fields{}.encode(t)
	for data, want := range map[string]error{
		"":                                      command.ErrMalformed,
		"\x01":                                  command.ErrMalformed,
		"\x01" + none + none:                    command.ErrMalformed,
		"\x01" + fields{"unknown": 1}.encode(t): command.ErrMalformed,
		"\x00" + none:                           command.ErrUnknownQuery,
		"\xff" + none:                           command.ErrUnknownQuery,
	} {
		if q, err := command.DecodeQuery([]byte(data)); !errors.Is(err, want) {
			t.Errorf("%q: got %+v, %v, want %v", data, q, err, want)
		}
	}
}

func FuzzDecodeQuery(f *testing.F) {
	for q := range queries() {
		data, err := command.EncodeQuery(q)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		q, err := command.DecodeQuery(data)
		if err != nil {
			if !errors.Is(err, command.ErrMalformed) && !errors.Is(err, command.ErrUnknownQuery) {
				t.Fatalf("the error is %v", err)
			}
			return
		}
		if again, err := command.EncodeQuery(q); err == nil {
			if _, err := command.DecodeQuery(again); err != nil {
				t.Fatalf("an encoded query cannot be decoded: %v", err)
			}
		}
	})
}
