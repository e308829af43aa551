package main

const crashPkg = "./test/suite/crash"

// crashes are planted bugs that show only if an agent is killed at the wrong instant.
var crashes = []mutant{
	{
		name: "intent-not-in-journal", promise: "after kill -9 at any instant the restart ends in the same state",
		in: "host/internal/workload", decl: "run.do",
		old: "		if err := r.mark(a, of, step.Intended); err != nil {\n			return err\n		}\n",
		new: "		r.Update(func() { of.progress[a.name] = step.Intended })\n",
		pkg: crashPkg, run: "^TestMatrix$/^local$/^reboot$/^claim:called$", args: []string{"-full"},
	},
	{
		name: "users-not-in-journal", promise: "users of a staging mount are known after a restart",
		in: "host/internal/workload/volumesteps", decl: "userTable.join",
		old: "	return u, t.save(key, u)\n",
		new: "	return u, nil\n",
		pkg: workloadPkg, run: "^TestUsersAreCountedOverARestart$",
	},
	{
		name: "unmounted-again-without-claim", promise: "a volume is not unmounted again once its claim is gone, also after kill -9",
		in: "host/internal/workload", decl: "run.undo",
		old: "		err = r.mark(a, of, \"\")\n	}\n	failpoint",
		new: "		r.Update(func() { delete(of.progress, a.name) })\n	}\n	failpoint",
		pkg: workloadPkg, run: "^TestNothingIsUnmountedWithoutAClaim$",
	},
	{
		name: "first-to-leave-unstages", promise: "a volume is unstaged after the last of its users, also across restarts",
		in: "host/internal/workload/volumesteps", decl: "Steps.Unstage",
		old: "	if slices.Equal(u.Users, []string{v.user()}) {\n",
		new: "	if slices.Contains(u.Users, v.user()) {\n",
		pkg: crashPkg, run: "^TestMatrix$/^local$/^chance$", seeds: 2,
	},
}
