package storage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// calls has a call of every method, with arguments drawn by gen and the answer that the plugin must return.
var calls = map[string]func(c Client, r *recorder, g *gen) (sent arguments, want, got any, err error){
	"ValidateVolume": request(Client.ValidateVolume),
	"Attach":         request(Client.Attach),
	"Stage":          command(Client.Stage),
	"Publish":        command(Client.Publish),
	"Create":         request(Client.Create),
	"Delete":         command(Client.Delete),
	"List":           request(Client.List),
	"Get":            request(Client.Get),
	"Modify":         command(Client.Modify),
	"Capacity":       request(Client.Capacity),
	"Expand":         request(Client.Expand),
	"ExpandNode":     request(Client.ExpandNode),
	"CreateSnapshot": request(Client.CreateSnapshot),
	"ListSnapshots": func(c Client, r *recorder, g *gen) (arguments, any, any, error) {
		d, req := draw[Driver](g), draw[ListSnapshotsRequest](g)
		want := will[ListSnapshotsResponse](r, g)
		for i := range want.Snapshots {
			want.Snapshots[i].Warnings = nil // CreateSnapshot alone has some
		}
		got, err := c.ListSnapshots(g.ctx, d, req)
		return arguments{d, []any{req}}, want, got, err
	},
	"VolumeStats": request(Client.VolumeStats),
	"Drivers": func(c Client, r *recorder, g *gen) (arguments, any, any, error) {
		want := will[[]Driver](r, g)
		got, err := c.Drivers(g.ctx)
		return arguments{}, want, got, err
	},

	"CreateGroupSnapshot": inGroup(Client.CreateGroupSnapshot),
	"DeleteGroupSnapshot": command(Client.DeleteGroupSnapshot),
	"GetGroupSnapshot":    inGroup(Client.GetGroupSnapshot),

	"Detach":    onVolume(Client.Detach),
	"Unstage":   onVolume(Client.Unstage),
	"Unpublish": onVolume(Client.Unpublish),
	"DeleteSnapshot": func(c Client, _ *recorder, g *gen) (arguments, any, any, error) {
		d, id, secrets := draw[Driver](g), draw[string](g), draw[map[string]string](g)
		return arguments{d, []any{id, secrets}}, nil, nil, c.DeleteSnapshot(g.ctx, d, id, secrets)
	},
	"Fingerprint": func(c Client, r *recorder, g *gen) (arguments, any, any, error) {
		d, opts := draw[Driver](g), draw[FingerprintOptions](g)
		want := will[[]Fingerprint](r, g)
		var got []Fingerprint
		enough := errors.New("enough")
		err := enough
		if len(want) > 0 || r.err != nil {
			err = c.Fingerprint(g.ctx, d, opts, func(f Fingerprint) error {
				if got = append(got, f); len(got) == len(want) {
					return enough
				}
				return nil
			})
		} else {
			r.note(d, opts)
		}
		if errors.Is(err, enough) {
			err = nil
		}
		return arguments{d, []any{opts}}, want, got, err
	},
}

type call = func(c Client, r *recorder, g *gen) (arguments, any, any, error)

func request[Req, Res any](method func(Client, context.Context, Driver, Req) (Res, error)) call {
	return func(c Client, r *recorder, g *gen) (arguments, any, any, error) {
		d, req := draw[Driver](g), draw[Req](g)
		want := will[Res](r, g)
		got, err := method(c, g.ctx, d, req)
		return arguments{d, []any{req}}, want, got, err
	}
}

// inGroup is request for group snapshots, whose snapshots have no warnings.
func inGroup[Req any](method func(Client, context.Context, Driver, Req) (GroupSnapshot, error)) call {
	return func(c Client, r *recorder, g *gen) (arguments, any, any, error) {
		d, req := draw[Driver](g), draw[Req](g)
		want := will[GroupSnapshot](r, g)
		for i := range want.Snapshots {
			want.Snapshots[i].Warnings = nil
		}
		got, err := method(c, g.ctx, d, req)
		return arguments{d, []any{req}}, want, got, err
	}
}

func command[Req any](method func(Client, context.Context, Driver, Req) error) call {
	return func(c Client, _ *recorder, g *gen) (arguments, any, any, error) {
		d, req := draw[Driver](g), draw[Req](g)
		return arguments{d, []any{req}}, nil, nil, method(c, g.ctx, d, req)
	}
}

func onVolume(method func(Client, context.Context, Driver, Volume, string) error) call {
	return func(c Client, _ *recorder, g *gen) (arguments, any, any, error) {
		d, v, s := draw[Driver](g), draw[Volume](g), draw[string](g)
		return arguments{d, []any{v, s}}, nil, nil, method(c, g.ctx, d, v, s)
	}
}

// gen draws values: random ones, or values without zero fields.
type gen struct {
	ctx  context.Context
	t    *rapid.T
	full bool
}

func draw[T any](g *gen) T {
	if g.full {
		var v T
		fill(reflect.ValueOf(&v).Elem())
		return v
	}
	return rapid.MakeCustom[T](valid).Draw(g.t, "value")
}

// will draws the answer that the recorder returns.
func will[T any](r *recorder, g *gen) T {
	v := draw[T](g)
	r.answer = v
	return v
}

func sampled[T any](values ...T) *rapid.Generator[any] { return rapid.SampledFrom(values).AsAny() }

// valid restricts values to those that the protocol can represent.
var valid = rapid.MakeConfig{
	Types: map[reflect.Type]*rapid.Generator[any]{
		reflect.TypeFor[AccessMode](): sampled("", SingleNodeReaderOnly, SingleNodeWriter, SingleNodeSingleWriter,
			SingleNodeMultiWriter, MultiNodeReaderOnly, MultiNodeSingleWriter, MultiNodeMultiWriter),
		reflect.TypeFor[AttachmentMode](): sampled("", FileSystem, BlockDevice),
		reflect.TypeFor[Unit]():           sampled("", Bytes, Inodes),
		reflect.TypeFor[time.Duration](): rapid.Map(rapid.Int64Range(0, 1<<40), func(ms int64) any {
			return time.Duration(ms) * time.Millisecond
		}),
		reflect.TypeFor[time.Time](): rapid.Map(rapid.Int64(), func(n int64) any {
			if n%7 == 0 {
				return time.Time{}
			}
			return time.Unix(0, n).UTC()
		}),
		reflect.TypeFor[int](): rapid.IntRange(0, math.MaxInt32).AsAny(), // Page.Max
	},
}

// fill sets every field to a value that is not zero.
func fill(v reflect.Value) {
	switch v.Interface().(type) {
	case AccessMode:
		v.SetString(string(MultiNodeMultiWriter))
		return
	case AttachmentMode:
		v.SetString(string(BlockDevice))
		return
	case Unit:
		v.SetString(string(Inodes))
		return
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(7, 8).UTC()))
		return
	case time.Duration:
		v.SetInt(int64(time.Second))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(elem)
		v.SetMapIndex(key, elem)
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	default:
		v.SetInt(7)
	}
}

func TestEveryMethodIsTested(t *testing.T) {
	methods := reflect.TypeFor[Client]()
	for i := range methods.NumMethod() {
		if name := methods.Method(i).Name; calls[name] == nil {
			t.Errorf("%s is not called by any test", name)
		}
	}
}

// The plugin receives the host's arguments unchanged, and the host the plugin's answer.
func TestRoundTrip(t *testing.T) {
	for name, do := range calls {
		t.Run(name, func(t *testing.T) {
			r := &recorder{}
			c := dial(t, r)
			rapid.Check(t, func(rt *rapid.T) {
				sent, want, got, err := do(c, r, &gen{ctx: t.Context(), t: rt})
				if err != nil {
					rt.Fatal(err)
				}
				if a, b := canonical(sent), canonical(r.got); !reflect.DeepEqual(a, b) {
					rt.Fatalf("sent %v, arrived %v", a, b)
				}
				if a, b := canonical(want), canonical(got); !reflect.DeepEqual(a, b) {
					rt.Fatalf("answered %v, got %v", a, b)
				}
			})
		})
	}
}

// Every field of the protocol has a field in the Go types.
func TestEveryProtocolFieldIsConverted(t *testing.T) {
	for name, do := range calls {
		t.Run(name, func(t *testing.T) {
			r := &recorder{}
			check := func(m any) { checkSet(t, m.(proto.Message).ProtoReflect()) }
			c := dial(t, r,
				grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
					invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
				) error {
					err := invoke(ctx, method, req, reply, cc, opts...)
					check(req)
					check(reply)
					return err
				}),
				grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
					open grpc.Streamer, opts ...grpc.CallOption,
				) (grpc.ClientStream, error) {
					s, err := open(ctx, desc, cc, method, opts...)
					return &checkedStream{ClientStream: s, check: check}, err
				}))
			if _, _, _, err := do(c, r, &gen{ctx: t.Context(), full: true}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

type checkedStream struct {
	grpc.ClientStream
	check func(any)
}

func (s *checkedStream) SendMsg(m any) error {
	s.check(m)
	return s.ClientStream.SendMsg(m)
}

func (s *checkedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		s.check(m)
	}
	return err
}

// checkSet fails for each field that is not set, recursively.
func checkSet(t *testing.T, m protoreflect.Message) {
	t.Helper()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		isTime := m.Descriptor().FullName() == "google.protobuf.Timestamp"
		switch {
		case isTime:
		case !m.Has(f):
			t.Errorf("%s is not set", f.FullName())
		case f.IsMap():
		case f.IsList() && f.Message() != nil:
			checkSet(t, m.Get(f).List().Get(0).Message())
		case !f.IsList() && f.Message() != nil:
			checkSet(t, m.Get(f).Message())
		}
	}
}

// An error keeps its code and message in every method.
func TestErrorsComeBack(t *testing.T) {
	for name, do := range calls {
		r := &recorder{err: status.Error(codes.FailedPrecondition, "no such thing")}
		_, _, _, err := do(dial(t, r), r, &gen{ctx: t.Context(), full: true})
		if status.Code(err) != codes.FailedPrecondition || status.Convert(err).Message() != "no such thing" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A plugin without the optional interfaces returns Unimplemented for their methods.
func TestOptionalInterfaces(t *testing.T) {
	must := map[string]bool{"ValidateVolume": true, "Publish": true, "Unpublish": true}
	r := &recorder{}
	c := dial(t, struct{ Storage }{r}) // hides what else the recorder can do
	for name, do := range calls {
		if name == "Fingerprint" {
			continue // see TestFingerprintThatClaimsTooMuch
		}
		_, _, _, err := do(c, r, &gen{ctx: t.Context(), full: true})
		if want := map[bool]codes.Code{true: codes.OK, false: codes.Unimplemented}[must[name]]; status.Code(err) != want {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

func TestFingerprintEndsWithItsCaller(t *testing.T) {
	r := &recorder{answer: []Fingerprint{{Healthy: true}}}
	c := dial(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	err := c.Fingerprint(ctx, Driver{ID: "d"}, FingerprintOptions{}, func(Fingerprint) error {
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) || err.Error() != context.Canceled.Error() {
		t.Errorf("got %v, want context.Canceled itself", err)
	}
}

// canonical returns a value as data in which nil and empty are equal.
func canonical(v any) any {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber() // all 64 bits
	var out any
	if err := dec.Decode(&out); err != nil {
		panic(err)
	}
	return prune(out)
}

func prune(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, e := range v {
			if v[key] = prune(e); v[key] == nil {
				delete(v, key)
			}
		}
		if len(v) == 0 {
			return nil
		}
	case []any:
		for i := range v {
			v[i] = prune(v[i])
		}
		if len(v) == 0 {
			return nil
		}
	}
	return v
}

// unwrapping is a wrapper that tells what it wraps: none of its abilities are hidden.
type unwrapping struct{ Storage }

func (u unwrapping) Unwrap() any { return u.Storage }

// A fingerprint that claims what the plugin has no interface for is refused at once, and names each.
func TestFingerprintThatClaimsTooMuch(t *testing.T) {
	all := []Fingerprint{{
		Controller: &ControllerCapabilities{
			AttachDetach: true, CreateDelete: true, GetCapacity: true, ListSnapshots: true, Expand: true,
		},
		Node: &NodeCapabilities{StageUnstage: true, VolumeStats: true},
	}}
	r := &recorder{answer: all}
	look := func(impl Storage) (reports int, err error) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err = dial(t, impl).Fingerprint(ctx, Driver{}, FingerprintOptions{}, func(Fingerprint) error {
			reports++
			cancel()
			return nil
		})
		return reports, err
	}
	reports, err := look(struct{ Storage }{r})
	if reports != 0 || status.Code(err) != codes.Internal {
		t.Errorf("%d reports, %v", reports, err)
	}
	for _, lack := range []string{
		"Attacher", "Provisioner", "CapacityReader", "Snapshotter", "Expander", "Stager", "StatsReader", "Unwrap() any",
	} {
		if !strings.Contains(fmt.Sprint(err), lack) {
			t.Errorf("%q is not in: %v", lack, err)
		}
	}
	for _, impl := range []Storage{r, unwrapping{r}} {
		if reports, err := look(impl); reports != 1 || !errors.Is(err, context.Canceled) {
			t.Errorf("%T: %d reports, %v", impl, reports, err)
		}
	}
}

func TestPoll(t *testing.T) {
	looks := []Fingerprint{{Message: "a"}, {Message: "a"}, {Healthy: true}, {Healthy: true}, {Message: "b"}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []string
	n := 0
	err := Poll(ctx, FingerprintOptions{Interval: time.Microsecond}, func(f Fingerprint) error {
		got = append(got, f.Message)
		return nil
	}, func(context.Context) Fingerprint {
		if n++; n == len(looks) {
			cancel()
		}
		return looks[n-1]
	})
	if want := []string{"a", "", "b"}; !slices.Equal(got, want) || !errors.Is(err, context.Canceled) {
		t.Errorf("reported %q, want %q: %v", got, want, err)
	}
}
