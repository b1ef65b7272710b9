"""The protocols of translators, where those that write one look for them.  They lie in `core`, because the
gateway, which uses translators, may not know this package."""

from forebay.core.translation import EVENT_MAX_BYTES as EVENT_MAX_BYTES
from forebay.core.translation import BindingTranslator as BindingTranslator
from forebay.core.translation import CallerTranslator as CallerTranslator
from forebay.core.translation import DocumentSplitter as DocumentSplitter
from forebay.core.translation import ErrorReader as ErrorReader
from forebay.core.translation import ForeignStreams as ForeignStreams
from forebay.core.translation import Headers as Headers
from forebay.core.translation import NamingTranslator as NamingTranslator
from forebay.core.translation import PassingWire as PassingWire
from forebay.core.translation import SigningTranslator as SigningTranslator
from forebay.core.translation import StreamTranslator as StreamTranslator
from forebay.core.translation import TargetTranslator as TargetTranslator
from forebay.core.translation import TargetWire as TargetWire
from forebay.core.translation import Way as Way
