package command_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
)

func TestOutcomeKeepsItsType(t *testing.T) {
	volume := claim.VolumeRef{Namespace: "default", ID: "mysql"}
	want := command.StartWorkloadResult{
		Workload: claim.Workload{
			Ref: claim.WorkloadRef{Namespace: "default", ID: "db-1"}, Node: "a", Status: claim.Running,
			CreatedAt: at, CreateIndex: 7,
		},
		Claims:  []claim.Claim{{Volume: volume, Node: "a", Mode: claim.Write, State: claim.Taken, Index: 7, TakenAt: at}},
		Volumes: []claim.Volume{{Definition: claim.Definition{VolumeRef: volume}, SealedSecrets: []byte{0, 255}}},
		Created: true,
	}
	data, err := command.EncodeOutcome(want, nil)
	check.NoError(t, err)
	got, err := command.DecodeOutcome(&command.StartWorkload{}, data)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	for _, c := range commands() {
		var result any = fields{}
		bad := []string{"", "x"}
		if none, err := command.DecodeOutcome(c, []byte(fields{}.encode(t))); err == nil {
			result = reflect.MakeSlice(reflect.TypeOf(none), 0, 0).Interface() // an empty list is as good as none
		} else {
			bad = append(bad, fields{}.encode(t))
		}
		if _, err := command.DecodeOutcome(c, []byte(fields{"result": result}.encode(t))); err != nil {
			t.Errorf("%T has no result: %v", c, err)
		}
		for _, data := range bad {
			if _, err := command.DecodeOutcome(c, []byte(data)); !errors.Is(err, command.ErrMalformed) {
				t.Errorf("%T from %q: %v, want ErrMalformed", c, data, err)
			}
		}
	}
}

// TestErrorsTravel checks that errors.Is and errors.As give the same answers at the receiver.
func TestErrorsTravel(t *testing.T) {
	volume := claim.VolumeRef{Namespace: "default", ID: "mysql"}
	refused := &claim.Refusal{
		Reason: claim.ErrHeld, Volume: volume, Mode: claim.Write, Detail: "has no write claim left", At: at.Add(time.Hour),
		Holders: []claim.Claim{{
			Volume: volume, Workload: claim.WorkloadRef{Namespace: "default", ID: "db-1"}, Node: "a",
			Mode: claim.Write, State: claim.Taken, TakenAt: at,
		}},
	}
	field := &claim.FieldError{Object: "node \"a\"", Field: "name", Problem: "is missing"}
	for name, sent := range map[string]error{
		"refusal":      fmt.Errorf("start: %w", refused),
		"field":        fmt.Errorf("register: %w", field),
		"sentinel":     fmt.Errorf("node \"b\": %w", claim.ErrNodeNotFound),
		"two":          fmt.Errorf("%w: %w", command.ErrStopped, command.ErrUnknownCommand),
		"other":        errors.New("something else"),
		"bootstrapped": &acl.BootstrappedError{ResetIndex: 7},
	} {
		data, err := command.EncodeOutcome(nil, sent)
		check.NoError(t, err)
		_, got := command.DecodeOutcome(&command.PutNode{}, data)
		if got == nil || got.Error() != sent.Error() {
			t.Errorf("%s: got %v, want %v", name, got, sent)
		}
		for _, reason := range []error{
			claim.ErrHeld, claim.ErrInvalid, claim.ErrNodeNotFound, command.ErrStopped,
			command.ErrUnknownCommand, command.ErrNotLeader,
		} {
			if errors.Is(got, reason) != errors.Is(sent, reason) {
				t.Errorf("%s: errors.Is for %q returned %v", name, reason, errors.Is(got, reason))
			}
		}
		var r *claim.Refusal
		if errors.As(sent, &r) && (!errors.As(got, &r) || !reflect.DeepEqual(r, refused)) {
			t.Errorf("%s: got the refusal %+v, want %+v", name, r, refused)
		}
		var f *claim.FieldError
		if errors.As(sent, &f) && (!errors.As(got, &f) || *f != *field) {
			t.Errorf("%s: got the field %+v, want %+v", name, f, field)
		}
		var b *acl.BootstrappedError
		if errors.As(sent, &b) && (!errors.As(got, &b) || b.ResetIndex != 7) {
			t.Errorf("%s: got %+v", name, b)
		}
	}
	// A newer server may send a reason that this program does not know.
	if _, err := command.DecodeOutcome(&command.PutNode{},
		[]byte(fields{"error": fields{"text": "no", "reasons": []string{"of-tomorrow"}}}.encode(t))); err == nil || err.Error() != "no" {
		t.Errorf("got %v", err)
	}
}

// TestEachReasonTravels reads the sentinel errors from the source, to check that reasons contains all of
// them.
func TestEachReasonTravels(t *testing.T) {
	known := map[string]bool{}
	for _, err := range command.Reasons() {
		known[err.Error()] = true
	}
	for _, file := range []string{"../claim/errors.go", "../acl/acl.go", "errors.go"} {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		check.NoError(t, err)
		found := 0
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || !strings.HasPrefix(spec.Names[0].Name, "Err") {
				return true
			}
			found++
			text := spec.Values[0].(*ast.CallExpr).Args[0].(*ast.BasicLit).Value
			if !known[strings.Trim(text, `"`)] {
				t.Errorf("%s: %s is not in reasons, so other servers cannot decode it", file, spec.Names[0].Name)
			}
			return true
		})
		if found == 0 {
			t.Errorf("%s has no sentinel", file)
		}
	}
}
