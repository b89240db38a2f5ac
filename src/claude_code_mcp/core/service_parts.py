"""Creates the parts of a service, each after the parts that it needs.

The order is: tasks and observers; the sessions in memory; the bookkeeper, which handles their events; the dependencies
of sessions in this server's environment and in the environments of clients; the operations of callers on all of it. No
part is completed later: only `SessionAccess`, which a plug-in creates, is attached here.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial

from .config import Settings, load_settings, secrets_of, without_settings
from .isolation import Home, Isolation
from .model.caller import LOCAL
from .model.paths import config_directory
from .policy.policy import Policy
from .questions.broker import Broker
from .redaction import Redactor
from .sessions.background_tasks import BackgroundTasks
from .sessions.bookkeeper import Bookkeeper
from .sessions.callers.caller_threads import CallerThreads
from .sessions.callers.client_environments import ClientEnvironments, make_launcher
from .sessions.callers.expected_callers import ExpectedCallers
from .sessions.callers.policy_enforcer import Judge, OptionCheck, PolicyEnforcer
from .sessions.callers.session_access import SessionAccess
from .sessions.keyed_messages import KeyedMessages
from .sessions.limit_waits import LimitWaits
from .sessions.live.mcp_bridge import SessionHub
from .sessions.live.slots import Slots
from .sessions.message_acceptance import MessageAcceptance
from .sessions.observers import ObserverList
from .sessions.outside_sessions import OutsideSessions
from .sessions.peer_servers import PeerServers
from .sessions.plan_usage import PlanUsages
from .sessions.registry import Sessions
from .sessions.session_deps import SessionDeps
from .sessions.session_work import SessionWork
from .sessions.stored.replica import SessionReplica
from .sessions.stored.session_relocation import SessionRelocation
from .sessions.stored.session_stores import Stores
from .sessions.stored.stored_sessions import StoredSessions
from .sessions.workplaces import Workplaces
from .state.message_keys import MessageKeys
from .state.spending import Spending
from .state.state_directory import database_in
from .transcripts.transcripts import ProjectFolders
from .working_directory import default_directory


class ServiceParts:
    """The parts of a service. `Service` starts them, and has the operations."""

    def __init__(
        self,
        settings: Settings | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        policy: Policy | None = None,
        redactor: Redactor | None = None,
        hub: SessionHub | None = None,
        callers: ExpectedCallers | None = None,
        spares: int = 0,
        replica: SessionReplica | None = None,
        judges: Sequence[Judge] = (),
        option_checks: Sequence[OptionCheck] = (),
        access: SessionAccess | None = None,
        isolation: type[Isolation] = Isolation,
        workplaces: Workplaces | None = None,
    ) -> None:
        """`settings` default to the environment and the configuration file. Without a policy, callers may do
        everything. `redactor` learns every secret that passes through. `hub` provides the MCP servers that all
        sessions share, such as a `Hub`; `callers` may have separate ones. `spares` is the number of processes kept
        ready for new sessions unless the settings name one. `replica` receives everything that another machine of a
        fleet needs to continue a session. `judges` and `option_checks` run in addition to the policy. Without `access`,
        only owners can use their sessions. `isolation` separates callers and their sessions and `workplaces` creates
        worktrees; without them, options that need them are refused."""
        self.settings = settings = settings or load_settings()
        environment = dict(os.environ if environment is None else environment)
        policy = policy or Policy()

        # What everything else uses.
        self._redactor = redactor or Redactor()
        self._redactor.learn(without_settings(environment, settings.sections))
        self._redactor.add(secrets_of(settings))
        self.redaction = self._redactor
        """Removes everything from strings and data that must not leave this process."""
        self.state = database_in(settings.state_dir)
        self._tasks = tasks = BackgroundTasks()
        self._observers = observers = ObserverList()
        self.own_addresses: list[str] = []
        """This service's HTTP addresses, as Claude Code patterns: sessions must not call them."""

        # Who may do what.
        self._callers = callers = callers or ExpectedCallers()
        self._isolation = isolation(
            settings, environment, policy, callers.principals, observers.act, others=callers.others
        )
        self._enforcer = PolicyEnforcer(
            policy,
            default_directory(settings),
            Spending(self.state, groups_of=policy.counted_groups),
            guarded=(str(config_directory(environment)), str(settings.state_dir)),
            judges=judges,
            option_checks=option_checks,
        )

        # The sessions in memory, and what happens to them.
        spares = spares if settings.spare_processes is None else settings.spare_processes
        self._sessions = Sessions(settings, tasks.start, spares)
        self.spares = self._sessions.spares
        self.access = access or SessionAccess()
        """Access to sessions of other owners."""
        self.access.attach(self._sessions, observers)
        self.caller_threads = CallerThreads()
        self.broker = Broker(settings.permission_timeout, self._redactor.data, endless=settings.questions_wait)
        self._bookkeeper = Bookkeeper(
            self._sessions, self._enforcer.limits, self.broker, observers, self.access, tasks.start
        )
        self._slots = Slots.of(settings)
        self.peers = PeerServers(self.state, tasks.start, self._redactor.data)

        # The environments that sessions run in: this server's, and those of clients.
        launcher = make_launcher(settings, Home.of_user(environment), self.own_addresses)
        alone = not callers.principals and not callers.others and policy.profile(LOCAL).isolation == "none"
        projects = ProjectFolders.below(launcher.config_dir, linked=alone)
        own = SessionDeps(
            settings=settings,
            launcher=launcher,
            stores=Stores.below(launcher.config_dir, settings, tasks.start, self._redactor.data, projects, replica),
            replica=replica,
            broker=self.broker,
            slots=self._slots,
            enforcer=self._enforcer,
            start_task=tasks.start,
            peers=self.peers,
            workplaces=workplaces or Workplaces(),
            open_hub=partial(nullcontext, hub),
            redact=self._redactor.data,
            sessions=self._sessions,
            bookkeeper=self._bookkeeper,
            observers=observers,
        )
        self._own_deps = own
        self._environments = ClientEnvironments(own, self._redactor, self.own_addresses, self._isolation, callers)

        # The operations of callers.
        self._keyed = KeyedMessages(MessageKeys(self.state), replicated=replica is not None)
        self._acceptance = MessageAcceptance(self._sessions, own, self._redactor, observers)
        self._limit_waits = LimitWaits(self._environments.all_stores, tasks.start)
        self.stored = StoredSessions(self._sessions, self._environments, observers, self._redactor.data, self.access)
        """Sessions on disk: listing, reading, naming, copying, sharing and removing them."""
        self.outside = OutsideSessions(self._sessions, self._environments)
        """Sessions that another program runs, such as Claude Code in a terminal."""
        self.work = SessionWork(self._sessions, self._environments, self.stored)
        """The changes of sessions: worktrees and checkpoints."""
        self.relocation = SessionRelocation(self._sessions, self._environments, self._limit_waits)
        """Moves sessions to and from other machines of a fleet."""
        self.plan_usages = PlanUsages(self.state, tasks.start)
        """The plan usage of callers."""
