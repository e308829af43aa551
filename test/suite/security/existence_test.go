package security_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testhost"
)

// nobody is the user who calls in TestWhatExistsIsNotTold.
const nobody = 65534

// scans is the number of random calls, each made about something that exists and about something that does not.
const scans = 1000

// Random calls of all methods never tell whether an object of another namespace exists: the same call about one that
// does not exist gets the same answer.
func TestWhatExistsIsNotTold(t *testing.T) {
	t.Parallel()
	h := testhost.NewNamed(t, "the-host-itself", testhost.LocalDriver(t)+fmt.Sprintf("socket_group = \"%d\"\nacl {\n  enabled = true\n}\n", nobody))
	h.Start()
	h.Run("volume", "create", h.Write("theirs.volume.hcl", `
id           = "theirs"
namespace    = "private"
type         = "csi"
plugin_id    = "local"
capacity_min = "1MiB"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
`))
	h.Run("workload", "start", h.Write("theirs.workload.hcl", `
workload "theirs" {
  namespace = "private"
  volume "data" {
    source      = "theirs"
    destination = "/srv/data"
  }
}
`))
	policy := func(name, rules string) { h.Run("acl", "policy", "apply", name, h.Write(name+".hcl", rules)) }
	policy("theirs", `namespace "private" { policy = "write" }`)
	policy("writer", `namespace "own" { policy = "write" }`)
	policy("reader", `namespace "own" { policy = "read" }`)
	h.Run("acl", "role", "apply", "theirs", "-policy", "theirs")
	token := func(policy string) (made madeToken) {
		out := h.Run("acl", "token", "create", "-name", policy, "-policy", policy, "-o", "json")
		if err := json.Unmarshal([]byte(out), &made); err != nil || made.Secret == "" || made.Token.Accessor == "" {
			t.Fatalf("%v: %s", err, out)
		}
		return made
	}
	theirs := token("theirs")
	external := externalOf(t, h)
	// Of each pair the first exists. The second has the same length and the same kind of characters.
	pairs := [][2]string{
		{"theirs", "absent"},
		{"private", "nothing"},
		{"local", "other"},
		{h.Name, strings.Repeat("n", len(h.Name))},
		{theirs.Token.Accessor, another(theirs.Token.Accessor)},
		{external, another(external)},
	}
	tokens := map[string]string{"nobody": "", "writer": token("writer").Secret, "reader": token("reader").Secret}
	conn := asNobody(t, h)

	all := apiMethods()
	rng := rand.New(rand.NewPCG(1, 2))
	answering := regexp.MustCompile(`node:\s*"` + h.Name + `"`)
	answers, who := map[codes.Code]int{}, []string{"nobody", "reader", "writer"}
	for n := range scans {
		method := all[n%len(all)]
		caller := who[n/len(all)%len(who)]
		script := rng.Uint64()
		ask := func(which int) (codes.Code, string) {
			request := randomRequest(rand.New(rand.NewPCG(script, 0)), method, caller, pairs, which)
			code, text := answer(t, conn, method, tokens[caller], request)
			text = strings.ReplaceAll(text, ` on node "`+h.Name+`"`, "") // it may say which agent answers
			if method.Name() == "ListWorkloads" {
				text = answering.ReplaceAllString(text, "")
			}
			for _, p := range pairs {
				text = strings.ReplaceAll(text, p[which], "<"+p[0]+">")
			}
			return code, vary.ReplaceAllString(text, "…")
		}
		code, exists := ask(0)
		otherCode, missing := ask(1)
		answers[code]++
		if code != otherCode || exists != missing {
			t.Errorf("%s by %s tells what exists:\n%v %s\n%v %s\n%v", method.FullName(), caller, code, exists, otherCode,
				missing, randomRequest(rand.New(rand.NewPCG(script, 0)), method, caller, pairs, 0))
		}
	}
	t.Logf("answers: %v", answers)
	if answers[codes.PermissionDenied] < scans/2 || answers[codes.OK] == 0 {
		t.Errorf("the calls are not what callers without rights make: %v", answers)
	}
	if !h.Alive() {
		t.Fatal("the agent has ended")
	}
}

// madeToken is what the command that makes a token prints.
type madeToken struct {
	Secret string
	Token  struct{ Accessor string }
}

// vary matches what differs between two answers to one call: times, and counts of what the calls themselves do.
var vary = regexp.MustCompile(`(seconds|nanos|index|modify_index|create_index):\s*\d+`)

func externalOf(t *testing.T, h *testhost.Host) string {
	t.Helper()
	var v struct {
		Volume struct {
			Spec struct {
				ExternalID string `json:"external_id"`
			}
		}
	}
	out := h.Run("volume", "status", "-namespace", "private", "-o", "json", "theirs")
	if err := json.Unmarshal([]byte(out), &v); err != nil || v.Volume.Spec.ExternalID == "" {
		t.Fatalf("%v: %s", err, out)
	}
	return v.Volume.Spec.ExternalID
}

// another returns an id that looks like this one and is none.
func another(id string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= '0' && r <= '9':
			return '0' + (r-'0'+1)%10
		case r >= 'a' && r <= 'f':
			return 'a' + (r-'a'+1)%6
		default:
			return r
		}
	}, id)
}

// asNobody returns a connection to the agent's socket by a user without rights.
func asNobody(t *testing.T, h *testhost.Host) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///agent", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (conn net.Conn, err error) {
			done := make(chan struct{})
			go func() { // the thread, which is nobody's from here on, ends with the goroutine
				defer close(done)
				runtime.LockOSThread()
				for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
					if _, _, errno := unix.RawSyscall(call, nobody, nobody, nobody); errno != 0 {
						err = errno
						return
					}
				}
				conn, err = net.Dial("unix", h.Socket())
			}()
			<-done
			return conn, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// apiMethods returns all methods of the API, by name.
func apiMethods() (all []protoreflect.MethodDescriptor) {
	pkg := hostv1.File_pannier_host_v1_volume_proto.Package()
	protoregistry.GlobalFiles.RangeFilesByPackage(pkg, func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				all = append(all, methods.Get(j))
			}
		}
		return true
	})
	slices.SortFunc(all, func(a, b protoreflect.MethodDescriptor) int {
		return strings.Compare(string(a.FullName()), string(b.FullName()))
	})
	return all
}

// randomRequest fills a request with names of what exists (which is 0) or does not (1); otherwise the same.
func randomRequest(rng *rand.Rand, m protoreflect.MethodDescriptor, caller string, pairs [][2]string, which int,
) *dynamicpb.Message {
	text := func(name protoreflect.Name) string {
		n := rng.IntN(20)
		switch {
		case strings.Contains(string(name), "namespace"):
			return []string{pairs[1][which], "own", "own", ""}[n%4]
		case name == "node" && slices.Contains([]string{"AgentService", "PluginService", "WorkloadService"},
			string(m.Parent().Name())):
			// Which agent is called is no secret from its callers.
			return []string{"none", pairs[3][0]}[n%2]
		case caller == "writer" && (name == "external_id" || name == "clone_id"):
			// Who may register volumes learns that the driver's own id is taken: it cannot have it twice.
			return []string{"none", ""}[n%2]
		case n < 8:
			return pairs[0][which]
		case n < 8+len(pairs):
			return pairs[n-8][which]
		default:
			return []string{"", "x", "single-node-writer", "volumes", "file-system", "csi"}[n%6]
		}
	}
	var fill func(msg protoreflect.Message, depth int)
	value := func(f protoreflect.FieldDescriptor) protoreflect.Value {
		switch f.Kind() {
		case protoreflect.StringKind:
			return protoreflect.ValueOfString(text(f.Name()))
		case protoreflect.BytesKind:
			return protoreflect.ValueOfBytes([]byte(text(f.Name())))
		case protoreflect.BoolKind:
			v := rng.IntN(2) == 0
			return protoreflect.ValueOfBool(v && f.Name() != "follow") // which never ends
		case protoreflect.EnumKind:
			return protoreflect.ValueOfEnum(protoreflect.EnumNumber(rng.IntN(3)))
		case protoreflect.Int32Kind:
			return protoreflect.ValueOfInt32(rng.Int32N(3))
		case protoreflect.Int64Kind:
			return protoreflect.ValueOfInt64(rng.Int64N(3))
		case protoreflect.Uint32Kind:
			return protoreflect.ValueOfUint32(rng.Uint32N(3))
		case protoreflect.Uint64Kind:
			return protoreflect.ValueOfUint64(rng.Uint64N(3))
		default:
			return f.Default()
		}
	}
	fill = func(msg protoreflect.Message, depth int) {
		fields := msg.Descriptor().Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			if depth > 3 || rng.IntN(4) == 0 && f.Name() != "id" && f.Name() != "name" || f.IsMap() ||
				f.Name() == "topics" { // a watch of topics never ends
				continue
			}
			switch {
			case f.IsList() && f.Message() != nil:
				fill(msg.Mutable(f).List().AppendMutable().Message(), depth+1)
			case f.IsList():
				msg.Mutable(f).List().Append(value(f))
			case f.Message() != nil:
				fill(msg.Mutable(f).Message(), depth+1)
			default:
				msg.Set(f, value(f))
			}
		}
	}
	msg := dynamicpb.NewMessage(m.Input())
	fill(msg, 0)
	return msg
}

// answer makes a call and returns its code, and all that it answers.
func answer(t *testing.T, conn *grpc.ClientConn, m protoreflect.MethodDescriptor, secret string,
	request *dynamicpb.Message,
) (codes.Code, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testhost.Wait)
	defer cancel()
	if secret != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, api.TokenHeader, secret)
	}
	path := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for {
		msg := dynamicpb.NewMessage(m.Output())
		if err := stream.RecvMsg(msg); errors.Is(err, io.EOF) {
			return codes.OK, said.String()
		} else if err != nil {
			s := status.Convert(err)
			return s.Code(), said.String() + s.Message() + fmt.Sprint(s.Details())
		}
		said.WriteString(prototext.MarshalOptions{}.Format(msg))
	}
}
