//! Runs normalizer, pre-tokenizer and model of the `tokenizers` crate over a text whose added
//! tokens have been cut out already.

use tokenizers::tokenizer::normalizer::Range;
use tokenizers::{
    Model, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer, Token,
};

use crate::added::Part;
use crate::error::TokenizerError;

pub(crate) struct Pipeline(pub tokenizers::Tokenizer);

impl Pipeline {
    /// Token ids of `text`, which `parts` covers without gaps.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] when a stage fails.
    pub fn encode(&self, text: &str, parts: &[Part]) -> Result<Vec<u32>, TokenizerError> {
        self.run(text, parts).map_err(|error| TokenizerError::Encode { detail: error.to_string() })
    }

    fn run(&self, text: &str, parts: &[Part]) -> tokenizers::Result<Vec<u32>> {
        let mut words = PreTokenizedString::from(text);
        words.split(|_, whole| {
            parts.iter().map(|part| slice(&whole, part)).collect::<tokenizers::Result<Vec<_>>>()
        })?;
        if let Some(normalizer) = self.0.get_normalizer() {
            words.normalize(|word| normalizer.normalize(word))?;
        }
        if let Some(pre_tokenizer) = self.0.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut words)?;
        }
        let model = self.0.get_model();
        words.tokenize(|word| model.tokenize(word.get()))?;
        let splits = words.get_splits(OffsetReferential::Original, OffsetType::None);
        let tokens = splits.iter().filter_map(|(_, _, tokens)| tokens.as_ref()).flatten();
        Ok(tokens.map(|token| token.id).collect())
    }
}

fn slice(
    whole: &NormalizedString,
    part: &Part,
) -> tokenizers::Result<(NormalizedString, Option<Vec<Token>>)> {
    let text = whole
        .slice(Range::Original(part.range.clone()))
        .ok_or_else(|| format!("bytes {:?} are not on character boundaries", part.range))?;
    let bytes = part.range.len();
    Ok((text, part.id.map(|id| vec![Token::new(id, String::new(), (0, bytes))])))
}
